//! Checkpoints: all that a session holds, in one safetensors file.
//!
//! A parameter is stored under its path, in its shape, so that other programs can read it; any other state under
//! `state:` and its name. The metadata holds the format's version, the order of the parameters (the flat states of an
//! optimizer depend on it) and what the caller adds.

use crate::{Error, Result};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Write},
    path::Path,
};
use wgrad::{Array, DType, Data, Layout, Session, Shape, StateId, f16};

/// The version of the format.
const FORMAT: &str = "1";
const FORMAT_KEY: &str = "wgrad.format";
const ORDER_KEY: &str = "wgrad.order";
/// Metadata keys that begin so are the format's own.
const RESERVED: &str = "wgrad.";

/// What the caller stores beside the tensors: the step, the task, the command line.
pub type Metadata = BTreeMap<String, String>;

/// Saves all parameters and states of a session.
///
/// The file appears under its name only when it is complete and on disk: it is written beside, flushed and renamed.
///
/// # Errors
/// [`Error::Io`] if it cannot be written; [`Error::Session`] if the device is lost.
///
/// # Panics
/// If a key of the metadata begins with `wgrad.`.
#[track_caller]
pub fn save(session: &mut Session, path: impl AsRef<Path>, metadata: &Metadata) -> Result<()> {
    let reserved = metadata.keys().find(|key| key.starts_with(RESERVED));
    assert!(reserved.is_none(), "checkpoint: the metadata key {reserved:?} is reserved for the format");
    let layout = session.layout().clone();
    let mut tensors = vec![];
    for (state, decl) in layout.states() {
        let data = session.read(state)?;
        if !layout.is_arena(state) {
            tensors.push((state_key(&decl.name), decl.dtype, decl.shape.clone(), encode(data.data())));
            continue;
        }
        for param in layout.members(state).into_iter().map(|p| layout.param(p)) {
            let values = data.data().slice(param.offset..param.offset + param.shape.numel());
            tensors.push((param.path.clone(), decl.dtype, param.shape.clone(), encode(&values)));
        }
    }
    let mut info: HashMap<String, String> = metadata.clone().into_iter().collect();
    info.insert(FORMAT_KEY.into(), FORMAT.into());
    info.insert(ORDER_KEY.into(), serde_json::json!(order(&layout)).to_string());
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(stored(*dtype), shape.to_vec(), bytes).expect("as many bytes as the shape holds"))
    });
    let bytes = safetensors::serialize(views, Some(info)).expect("a header of names and shapes serializes");
    let path = path.as_ref();
    write_atomically(path, &bytes).map_err(|source| Error::Io { action: "write", path: path.into(), source })
}

/// Restores all parameters and states of a session, and gives back the caller's metadata.
///
/// The whole file is checked before anything is written: a file that does not fit leaves the session as it was.
///
/// # Errors
/// [`Error::Io`], [`Error::Malformed`], [`Error::Foreign`] and [`Error::Version`] if it is not a checkpoint that can be
/// read; [`Error::Missing`], [`Error::Unexpected`], [`Error::Mismatch`] and [`Error::Order`] if it is one of another
/// model; [`Error::Session`] if the device is lost.
pub fn load(session: &mut Session, path: impl AsRef<Path>) -> Result<Metadata> {
    let path = path.as_ref();
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let mut metadata = header(path, &bytes)?;
    let layout = session.layout().clone();
    let wanted = wanted(&layout);
    for want in &wanted {
        let view = file.tensor(&want.key);
        let view = view.map_err(|_| Error::Missing { path: path.into(), tensor: want.key.clone() })?;
        want.check(path, &want.key, &view, view.dtype() == stored(want.dtype))?;
    }
    if let Some(name) = file.names().into_iter().filter(|name| wanted.iter().all(|w| w.key != *name)).min() {
        return Err(Error::Unexpected { path: path.into(), tensor: name.into() });
    }
    check_order(path, &layout, metadata.get(ORDER_KEY))?;
    let data = |want: &Wanted| {
        let view = file.tensor(&want.key).expect("checked above");
        decode(view.dtype(), view.data()).expect("checked above")
    };
    write(session, &layout, wanted.iter().map(|want| (want, data(want))))?;
    metadata.retain(|key, _| !key.starts_with(RESERVED));
    Ok(metadata)
}

/// The caller's metadata of a checkpoint, for what there is to ask before a session is made for it.
///
/// # Errors
/// As [`load`], but for what a session holds.
pub fn metadata(path: impl AsRef<Path>) -> Result<Metadata> {
    let path = path.as_ref();
    let mut metadata = header(path, &read(path)?)?;
    metadata.retain(|key, _| !key.starts_with(RESERVED));
    Ok(metadata)
}

/// Loads parameters from a safetensors file of any origin; other states stay as they are.
///
/// `name_map` gives the path of the parameter that a tensor of the file stands for, `None` to leave it out. Floats are
/// converted to the parameter's type. The names left out are returned, sorted.
///
/// The whole file is checked before anything is written.
///
/// # Errors
/// [`Error::Io`] and [`Error::Malformed`] if the file cannot be read; [`Error::Missing`] if a parameter gets no tensor,
/// [`Error::Ambiguous`] if two, [`Error::Unexpected`] if a path is no parameter's, [`Error::Mismatch`] if a shape differs
/// or the type is not f64, f32 or f16; [`Error::Session`] if the device is lost.
pub fn load_params(
    session: &mut Session,
    path: impl AsRef<Path>,
    name_map: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>> {
    let path = path.as_ref();
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let layout = session.layout().clone();
    let wanted: Vec<Wanted> = wanted(&layout).into_iter().filter(|want| want.arena_offset.is_some()).collect();
    let mut names = file.names();
    names.sort_unstable();
    let (mut chosen, mut left_out): (BTreeMap<String, &str>, Vec<String>) = Default::default();
    for name in names {
        let Some(param) = name_map(name) else {
            left_out.push(name.into());
            continue;
        };
        let Some(want) = wanted.iter().find(|want| want.key == param) else {
            return Err(Error::Unexpected { path: path.into(), tensor: param });
        };
        if let Some(first) = chosen.insert(param.clone(), name) {
            return Err(Error::Ambiguous { path: path.into(), first: first.into(), second: name.into(), param });
        }
        let view = file.tensor(name).expect("named by the file");
        want.check(path, name, &view, native(view.dtype()).is_some_and(DType::is_float))?;
    }
    if let Some(want) = wanted.iter().find(|want| !chosen.contains_key(&want.key)) {
        return Err(Error::Missing { path: path.into(), tensor: want.key.clone() });
    }
    let data = |want: &Wanted| {
        let view = file.tensor(chosen[&want.key]).expect("checked above");
        Data::from_f64(want.dtype, &decode(view.dtype(), view.data()).expect("checked above").to_f64())
    };
    write(session, &layout, wanted.iter().map(|want| (want, data(want))))?;
    Ok(left_out)
}

/// A tensor that a session needs of a file.
struct Wanted {
    key: String,
    shape: Shape,
    dtype: DType,
    /// The state that holds it.
    state: StateId,
    /// Where it starts, if that state is an arena.
    arena_offset: Option<usize>,
}

impl Wanted {
    fn check(&self, path: &Path, tensor: &str, view: &TensorView<'_>, dtype_fits: bool) -> Result<()> {
        if dtype_fits && view.shape() == &self.shape[..] {
            return Ok(());
        }
        let dtype = native(view.dtype()).map_or_else(|| format!("{:?}", view.dtype()), |dtype| dtype.to_string());
        Err(Error::Mismatch {
            path: path.into(),
            tensor: tensor.into(),
            want: format!("{}{}", self.dtype, self.shape),
            have: format!("{dtype}{}", Shape::from(view.shape())),
        })
    }
}

/// All tensors that a layout declares: parameters, and states that are not arenas.
fn wanted(layout: &Layout) -> Vec<Wanted> {
    let params = layout.params().map(|(_, decl)| Wanted {
        key: decl.path.clone(),
        shape: decl.shape.clone(),
        dtype: layout.state(decl.arena).dtype,
        state: decl.arena,
        arena_offset: Some(decl.offset),
    });
    let states = layout.states().filter(|(id, _)| !layout.is_arena(*id)).map(|(state, decl)| Wanted {
        key: state_key(&decl.name),
        shape: decl.shape.clone(),
        dtype: decl.dtype,
        state,
        arena_offset: None,
    });
    params.chain(states).collect()
}

fn state_key(name: &str) -> String {
    format!("state:{name}")
}

/// Writes tensors to a session, each state once.
fn write<'a>(session: &mut Session, layout: &Layout, tensors: impl Iterator<Item = (&'a Wanted, Data)>) -> Result<()> {
    let mut arenas: BTreeMap<StateId, Vec<f64>> = BTreeMap::new();
    for (want, data) in tensors {
        let Some(offset) = want.arena_offset else {
            session.write(want.state, &Array::new(&want.shape, data))?;
            continue;
        };
        let len = layout.state(want.state).shape.numel();
        let arena = arenas.entry(want.state).or_insert_with(|| vec![0.0; len]);
        arena[offset..offset + data.len()].copy_from_slice(&data.to_f64());
    }
    for (state, values) in arenas {
        let decl = layout.state(state);
        session.write(state, &Array::new(&decl.shape, Data::from_f64(decl.dtype, &values)))?;
    }
    Ok(())
}

/// The paths of the parameters in the order of their segments, arena by arena.
fn order(layout: &Layout) -> Vec<&str> {
    let mut params: Vec<_> = layout.params().map(|(_, decl)| (layout.state(decl.arena).dtype, decl)).collect();
    params.sort_by_key(|(dtype, decl)| (*dtype, decl.offset, decl.shape.numel()));
    params.into_iter().map(|(_, decl)| decl.path.as_str()).collect()
}

fn check_order(path: &Path, layout: &Layout, stored: Option<&String>) -> Result<()> {
    let malformed = || Error::Malformed { path: path.into(), why: format!("its {ORDER_KEY} is not a list of names") };
    let have: Vec<String> = stored.and_then(|text| serde_json::from_str(text).ok()).ok_or_else(malformed)?;
    let want = order(layout);
    if have.len() != want.len() {
        return Err(malformed());
    }
    match want.iter().zip(&have).find(|(want, have)| *want != have) {
        Some((want, have)) => Err(Error::Order { path: path.into(), want: want.to_string(), have: have.clone() }),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| Error::Io { action: "read", path: path.into(), source })
}

fn parse<'b>(path: &Path, bytes: &'b [u8]) -> Result<SafeTensors<'b>> {
    SafeTensors::deserialize(bytes).map_err(|error| Error::Malformed { path: path.into(), why: error.to_string() })
}

/// All metadata of a checkpoint in a format that is known.
fn header(path: &Path, bytes: &[u8]) -> Result<Metadata> {
    let (_, header) = SafeTensors::read_metadata(bytes)
        .map_err(|error| Error::Malformed { path: path.into(), why: error.to_string() })?;
    let metadata: Metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    match metadata.get(FORMAT_KEY).map(String::as_str) {
        Some(FORMAT) => Ok(metadata),
        Some(found) => Err(Error::Version { path: path.into(), found: found.into(), known: FORMAT }),
        None => Err(Error::Foreign { path: path.into() }),
    }
}

/// Writes beside the path, flushes to the disk, and renames, so that a crash leaves the old file or the new one.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".checkpoint-");
    // As any new file: a temporary one is private otherwise, and would stay so.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The rename itself is on disk once the folder is.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Pairs of our element types and the file's.
const DTYPES: [(DType, Dtype); 6] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::U32, Dtype::U32),
    (DType::I32, Dtype::I32),
    (DType::Bool, Dtype::BOOL),
];

fn stored(dtype: DType) -> Dtype {
    DTYPES.iter().find(|(ours, _)| *ours == dtype).expect("every type has a stored form").1
}

fn native(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(_, theirs)| *theirs == dtype).map(|(ours, _)| *ours)
}

/// The elements, little-endian; bools one byte each.
fn encode(data: &Data) -> Vec<u8> {
    match data {
        Data::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::U32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::Bool(v) => v.iter().map(|&x| x as u8).collect(),
    }
}

/// The reverse; `None` for types that no state has.
fn decode(dtype: Dtype, bytes: &[u8]) -> Option<Data> {
    fn chunks<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| element(*chunk)).collect()
    }
    Some(match native(dtype)? {
        DType::F64 => Data::F64(chunks(bytes, f64::from_le_bytes)),
        DType::F32 => Data::F32(chunks(bytes, f32::from_le_bytes)),
        DType::F16 => Data::F16(chunks(bytes, f16::from_le_bytes)),
        DType::U32 => Data::U32(chunks(bytes, u32::from_le_bytes)),
        DType::I32 => Data::I32(chunks(bytes, i32::from_le_bytes)),
        DType::Bool => Data::Bool(bytes.iter().map(|&x| x != 0).collect()),
    })
}
