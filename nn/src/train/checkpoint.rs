//! Checkpoints: all that a session holds, in one safetensors file.
//!
//! A parameter is stored under its path, in its shape, so that other programs can read it; any other state under
//! `state:` and its name; an array that the caller adds under `extra:` and its name. The metadata holds the format's
//! version, the order of the parameters (the flat states of an optimizer depend on it) and the caller's text. The same
//! content makes the same bytes.

use super::{
    SaveFile,
    elements::{decode, decode_as, encode, holds, named, read_as, stored},
};
use crate::{
    error::{Error, Result},
    layers::paths::matches,
};
use safetensors::{
    SafeTensors,
    tensor::{Metadata as Header, TensorInfo, TensorView},
};
use std::{borrow::Cow, collections::BTreeMap, fs, path::Path};
use wgrad::{Array, DType, Data, Layout, Param, Session, Shape, StateId};

/// The version of the format.
const FORMAT: &str = "1";
const FORMAT_KEY: &str = "wgrad.format";
const ORDER_KEY: &str = "wgrad.order";
/// The prefix of the format's own metadata keys.
const RESERVED: &str = "wgrad.";
/// The longest header, in bytes, that readers of safetensors accept.
const MOST_HEADER: usize = 100_000_000;
const EXTRA: &str = "extra:";

/// Text that the caller stores beside the tensors: the step, the task, the command line. All of it is in the header,
/// which has room for 100 MB.
pub type Metadata = BTreeMap<String, String>;

/// Arrays that the caller stores beside the states of a session, by name, such as data that grows with the run.
pub type Arrays = BTreeMap<String, Array>;

/// Saves all parameters and states of a session.
///
/// The file is replaced in one step, when the new one is complete and on disk. A run that saves to one file again and
/// again holds a [`SaveFile`], and calls [`save_to`].
///
/// States that ranks share out ([`wgrad::Store::shard`]) are saved whole, so a run goes on with any number of ranks: one
/// rank saves, and all others call [`take_part`] at the same time.
///
/// # Errors
/// As [`SaveFile::open`] and [`save_to`].
///
/// # Panics
/// As [`save_to`].
#[track_caller]
pub fn save(session: &mut Session, path: impl AsRef<Path>, metadata: &Metadata) -> Result<()> {
    check_keys(metadata);
    // Other ranks may wait for what is read here, so an error of the file comes after it.
    let tensors = tensors(session)?;
    write_session(&SaveFile::open(path)?, session, tensors, metadata, &Arrays::new())
}

/// Gives the rank that saves a checkpoint this rank's parts of the states that all of them share out. Ranks that share
/// nothing out do nothing here.
///
/// # Errors
/// [`Error::Session`] if the device or a rank is lost, or if the ranks do not save at the same time.
pub fn take_part(session: &mut Session) -> Result<()> {
    let layout = session.layout().clone();
    for (state, _) in layout.states().filter(|(_, decl)| decl.share.is_some()) {
        session.read_whole(state)?;
    }
    Ok(())
}

/// Saves all parameters and states of a session, and arrays of the caller, to a [`SaveFile`]. Other ranks that share
/// states out call [`take_part`] at the same time.
///
/// # Errors
/// [`Error::Io`] if it cannot be written; [`Error::Header`] if the metadata has no room in the header;
/// [`Error::Session`] if the device is lost. The file then stays as it was.
///
/// # Panics
/// If a key of the metadata begins with `wgrad.`.
#[track_caller]
pub fn save_to(file: &SaveFile, session: &mut Session, metadata: &Metadata, arrays: &Arrays) -> Result<()> {
    check_keys(metadata);
    let tensors = tensors(session)?;
    write_session(file, session, tensors, metadata, arrays)
}

/// The tensors of a file, by name.
type Tensors<'a> = Vec<(String, Cow<'a, Array>)>;

/// All parameters and states of a session, whole.
fn tensors<'a>(session: &mut Session) -> Result<Tensors<'a>> {
    let layout = session.layout().clone();
    let mut tensors = vec![];
    for (state, decl) in layout.states() {
        let data = session.read_whole(state)?;
        if !layout.is_arena(state) {
            tensors.push((state_key(&decl.name), Cow::Owned(data)));
            continue;
        }
        for param in layout.members(state).into_iter().map(|p| layout.param(p)) {
            let values = data.data().slice(param.offset..param.offset + param.shape.numel());
            tensors.push((param.path.clone(), Cow::Owned(Array::new(&param.shape, values))));
        }
    }
    Ok(tensors)
}

fn write_session<'a>(
    file: &SaveFile,
    session: &Session,
    mut tensors: Tensors<'a>,
    metadata: &Metadata,
    arrays: &'a Arrays,
) -> Result<()> {
    tensors.extend(arrays.iter().map(|(name, array)| (format!("{EXTRA}{name}"), Cow::Borrowed(array))));
    let mut metadata = metadata.clone();
    metadata.insert(FORMAT_KEY.into(), FORMAT.into());
    metadata.insert(ORDER_KEY.into(), serde_json::json!(order(session.layout())).to_string());
    write_file(file, tensors, &metadata)
}

/// Writes tensors and metadata as safetensors. The same content makes the same bytes.
pub(crate) fn write_file(file: &SaveFile, mut tensors: Tensors<'_>, metadata: &Metadata) -> Result<()> {
    // The widest types come first, so that each tensor is aligned to its type.
    tensors.sort_by(|(a, x), (b, y)| stored(y.dtype()).cmp(&stored(x.dtype())).then_with(|| a.cmp(b)));
    let header = encode_header(&tensors, metadata);
    if header.len() > MOST_HEADER {
        return Err(Error::Header { path: file.path().into(), bytes: header.len(), most: MOST_HEADER });
    }
    file.write(|to| {
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(&header)?;
        tensors.iter().try_for_each(|(_, array)| to.write_all(&encode(array.data())))
    })
}

/// All tensors and the metadata of a safetensors file, by name.
///
/// # Errors
/// [`Error::Io`] and [`Error::Malformed`] if it cannot be read, [`Error::Type`] if a tensor is of a type that cannot be
/// loaded.
pub(crate) fn read_file(path: &Path) -> Result<(Arrays, Metadata)> {
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let mut arrays = Arrays::new();
    for (name, view) in file.tensors() {
        arrays.insert(name.clone(), array(path, &name, &view)?);
    }
    Ok((arrays, all_metadata(path, &bytes)?))
}

/// A tensor of a file.
fn array(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Array> {
    let data = decode(view).ok_or_else(|| unreadable(path, name, view))?;
    Ok(Array::new(view.shape(), data))
}

fn unreadable(path: &Path, tensor: &str, view: &TensorView<'_>) -> Error {
    Error::Type { path: path.into(), tensor: tensor.into(), dtype: named(view.dtype()) }
}

#[track_caller]
fn check_keys(metadata: &Metadata) {
    let reserved = metadata.keys().find(|key| key.starts_with(RESERVED));
    assert!(reserved.is_none(), "checkpoint: the metadata key {reserved:?} is reserved for the format");
}

/// The header of a file. The crate `safetensors` would write the metadata in an order that differs each time.
fn encode_header(tensors: &[(String, Cow<'_, Array>)], metadata: &Metadata) -> Vec<u8> {
    let mut end = 0;
    let info = |(name, array): &(String, Cow<'_, Array>)| {
        let start = end;
        end += array.shape().numel() * array.dtype().size();
        let (dtype, shape) = (stored(array.dtype()), array.shape().to_vec());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let infos = Header::new(None, tensors.iter().map(info).collect()).expect("tensors lie side by side");
    let infos = serde_json::to_value(infos).expect("a header serializes");
    let infos = infos.as_object().expect("a header is an object");
    let mut entries: BTreeMap<&str, serde_json::Value> =
        infos.iter().map(|(name, info)| (name.as_str(), info.clone())).collect();
    entries.insert("__metadata__", serde_json::json!(metadata));
    let mut bytes = serde_json::to_vec(&entries).expect("a header serializes");
    // Tensors begin at a multiple of the widest element.
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

/// Restores all parameters and states of a session, and returns the caller's metadata. Of states that ranks share out, each
/// rank takes its part.
///
/// The whole file is checked before anything is written: a file that does not fit leaves the session as it was.
///
/// A tensor that another program has stored in bf16 is read into f32 or f64, which hold its values exactly. A state of
/// f16 does not, so it is a mismatch.
///
/// # Errors
/// [`Error::Io`], [`Error::Malformed`], [`Error::Foreign`] and [`Error::Version`] if it is not a checkpoint that can be
/// read; [`Error::Missing`], [`Error::Unexpected`], [`Error::Mismatch`], [`Error::Type`] and [`Error::Order`] if it is
/// one of another model; [`Error::Session`] if the device is lost.
pub fn load(session: &mut Session, path: impl AsRef<Path>) -> Result<Metadata> {
    Ok(load_with_arrays(session, path)?.0)
}

/// As [`load`], and returns the caller's arrays too; one stored in bf16 comes as f32.
///
/// # Errors
/// As [`load`]; also [`Error::Type`] if an array is of a type that cannot be loaded.
pub fn load_with_arrays(session: &mut Session, path: impl AsRef<Path>) -> Result<(Metadata, Arrays)> {
    let path = path.as_ref();
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let mut metadata = header(path, &bytes)?;
    let layout = session.layout().clone();
    let wanted = wanted(&layout);
    for want in &wanted {
        let view = file.tensor(&want.key);
        let view = view.map_err(|_| Error::Missing { path: path.into(), tensor: want.key.clone() })?;
        want.check(path, &want.key, &view, holds(want.dtype, view.dtype()))?;
    }
    let mut arrays = Arrays::new();
    let mut names = file.names();
    names.sort_unstable();
    for name in names.into_iter().filter(|name| wanted.iter().all(|w| w.key != *name)) {
        let Some(extra) = name.strip_prefix(EXTRA) else {
            return Err(Error::Unexpected { path: path.into(), tensor: name.into() });
        };
        let view = file.tensor(name).expect("named by the file");
        arrays.insert(extra.into(), array(path, name, &view)?);
    }
    check_order(path, &layout, metadata.get(ORDER_KEY))?;
    let data = |want: &Wanted| {
        let view = file.tensor(&want.key).expect("checked above");
        decode_as(&view, want.dtype).expect("checked above")
    };
    write(session, wanted.iter().map(|want| (want, data(want))))?;
    metadata.retain(|key, _| !key.starts_with(RESERVED));
    Ok((metadata, arrays))
}

/// The result of [`load_where`]. Tensors are named as in the file, sorted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The caller's metadata.
    pub metadata: Metadata,
    /// The tensors that were loaded.
    pub loaded: Vec<String>,
    /// The tensors of the session that keep their values: no pattern matches them, or the file lacks them.
    pub kept: Vec<String>,
    /// The tensors of the file that were not loaded: no pattern matches them, or the session lacks them.
    pub unused: Vec<String>,
}

/// Restores those parameters and states of a session that a pattern matches and the file has. All others keep their
/// values: a new head on a trained body, or the weights of a run without its optimizer.
///
/// Patterns are those of [`crate::paths`]. They match a parameter by its path, and any other state by `state:` and its
/// name: `**` matches all, `encoder/**` the parameters of a module, `state:adam/**` the states of an optimizer. Unlike
/// [`load_params`] this reads checkpoints only, and converts no types but bf16, as [`load`].
///
/// ```
/// # use wgrad::{Array, Session, Store};
/// # use wgrad_nn::checkpoint;
/// # fn fine_tune(session: &mut Session) -> Result<(), wgrad_nn::Error> {
/// let done = checkpoint::load_where(session, "pretrained.safetensors", &["encoder/**", "state:rng/**"])?;
/// println!("new: {:?}", done.kept);
/// # Ok(())
/// # }
/// ```
///
/// The whole file is checked before anything is written: on an error, the session stays as it was.
///
/// # Errors
/// [`Error::Io`], [`Error::Malformed`], [`Error::Foreign`] and [`Error::Version`] if it is not a checkpoint that can be
/// read; [`Error::NoMatch`] if a pattern matches no tensor that both have; [`Error::Mismatch`] or [`Error::Type`] if a
/// tensor that is matched has another shape or type; [`Error::OtherParams`] if a state is matched that has elements for
/// each parameter, and the parameters are not the same ones in the same order; [`Error::Session`] if the device is lost.
pub fn load_where(session: &mut Session, path: impl AsRef<Path>, patterns: &[&str]) -> Result<Loaded> {
    let path = path.as_ref();
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let mut metadata = header(path, &bytes)?;
    let layout = session.layout().clone();
    let wanted = wanted(&layout);
    let mut unused: Vec<String> = file.names().into_iter().map(String::from).collect();
    for pattern in patterns {
        let in_file = unused.iter().filter(|name| matches(pattern, name));
        if !in_file.clone().any(|name| wanted.iter().any(|want| want.key == *name)) {
            let in_program = wanted.iter().filter(|want| matches(pattern, &want.key)).count();
            let (path, pattern, in_file) = (path.into(), pattern.to_string(), in_file.count());
            return Err(Error::NoMatch { path, pattern, in_file, in_program });
        }
    }
    let chosen = |want: &Wanted| unused.contains(&want.key) && patterns.iter().any(|p| matches(p, &want.key));
    let (chosen, others): (Vec<Wanted>, Vec<Wanted>) = wanted.into_iter().partition(chosen);
    let mut tensors = vec![];
    for want in &chosen {
        let view = file.tensor(&want.key).expect("named by the file");
        want.check(path, &want.key, &view, holds(want.dtype, view.dtype()))?;
        if matches!(want.place, Place::State(state) if layout.is_per_param(state))
            && !has_same_params(&file, &layout, metadata.get(ORDER_KEY))
        {
            return Err(Error::OtherParams { path: path.into(), tensor: want.key.clone() });
        }
        tensors.push((want, decode_as(&view, want.dtype).expect("checked above")));
    }
    write(session, tensors.into_iter())?;
    let names = |wanted: Vec<Wanted>| {
        let mut names: Vec<String> = wanted.into_iter().map(|want| want.key).collect();
        names.sort_unstable();
        names
    };
    let (loaded, kept) = (names(chosen), names(others));
    unused.retain(|name| loaded.binary_search(name).is_err());
    unused.sort_unstable();
    metadata.retain(|key, _| !key.starts_with(RESERVED));
    Ok(Loaded { metadata, loaded, kept, unused })
}

/// True if a checkpoint is of the same parameters: of the same paths and shapes, in the same order.
fn has_same_params(file: &SafeTensors<'_>, layout: &Layout, stored: Option<&String>) -> bool {
    let have: Option<Vec<String>> = stored.and_then(|text| serde_json::from_str(text).ok());
    let shape = |path: &str| file.tensor(path).ok().map(|view| view.shape().to_vec());
    have.is_some_and(|have| have == order(layout))
        && layout.params().all(|(_, decl)| shape(&decl.path).is_some_and(|shape| shape == decl.shape[..]))
}

/// The caller's metadata of a checkpoint, which can be read before there is a session for it.
///
/// # Errors
/// [`Error::Io`], [`Error::Malformed`], [`Error::Foreign`] and [`Error::Version`], as [`load`].
pub fn metadata(path: impl AsRef<Path>) -> Result<Metadata> {
    let path = path.as_ref();
    let mut metadata = header(path, &read(path)?)?;
    metadata.retain(|key, _| !key.starts_with(RESERVED));
    Ok(metadata)
}

/// Loads parameters from a safetensors file of any origin; other states stay as they are.
///
/// `name_map` gives the path of the parameter that a tensor of the file stands for, `None` to leave it out. Floats (f64,
/// f32, f16, bf16) are converted to the parameter's type, f32 or f64; a bf16 and an f16 are exact in both.
/// The names left out are returned, sorted.
///
/// The whole file is checked before anything is written.
///
/// # Errors
/// [`Error::Io`] and [`Error::Malformed`] if the file cannot be read; [`Error::Missing`] if a parameter gets no tensor,
/// [`Error::Ambiguous`] if it gets two, [`Error::Unexpected`] if `name_map` gives a path that no parameter has,
/// [`Error::Mismatch`] if a shape differs or the type is no float, [`Error::Type`] if it cannot be loaded;
/// [`Error::Session`] if the device is lost.
pub fn load_params(
    session: &mut Session,
    path: impl AsRef<Path>,
    name_map: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>> {
    let path = path.as_ref();
    let bytes = read(path)?;
    let file = parse(path, &bytes)?;
    let layout = session.layout().clone();
    let wanted: Vec<Wanted> =
        wanted(&layout).into_iter().filter(|want| matches!(want.place, Place::Param(_))).collect();
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
        want.check(path, name, &view, read_as(view.dtype()).is_some_and(DType::is_float))?;
    }
    if let Some(want) = wanted.iter().find(|want| !chosen.contains_key(&want.key)) {
        return Err(Error::Missing { path: path.into(), tensor: want.key.clone() });
    }
    let data = |want: &Wanted| {
        let view = file.tensor(chosen[&want.key]).expect("checked above");
        decode_as(&view, want.dtype).expect("checked above")
    };
    write(session, wanted.iter().map(|want| (want, data(want))))?;
    Ok(left_out)
}

/// A tensor that a session needs from a file.
struct Wanted {
    key: String,
    shape: Shape,
    dtype: DType,
    place: Place,
}

/// The place of a tensor in a session.
#[derive(Clone, Copy)]
enum Place {
    Param(Param),
    State(StateId),
}

impl Wanted {
    fn check(&self, path: &Path, tensor: &str, view: &TensorView<'_>, dtype_fits: bool) -> Result<()> {
        if dtype_fits && view.shape() == &self.shape[..] {
            return Ok(());
        }
        if read_as(view.dtype()).is_none() {
            return Err(unreadable(path, tensor, view));
        }
        Err(Error::Mismatch {
            path: path.into(),
            tensor: tensor.into(),
            want: format!("{}{}", self.dtype, self.shape),
            have: format!("{}{}", named(view.dtype()), Shape::from(view.shape())),
        })
    }
}

/// All tensors that a layout declares: parameters, and states that are not arenas.
fn wanted(layout: &Layout) -> Vec<Wanted> {
    let params = layout.params().map(|(param, decl)| Wanted {
        key: decl.path.clone(),
        shape: decl.shape.clone(),
        dtype: layout.state(decl.arena).dtype,
        place: Place::Param(param),
    });
    let states = layout.states().filter(|(id, _)| !layout.is_arena(*id)).map(|(state, decl)| Wanted {
        key: state_key(&decl.name),
        shape: decl.share.map_or(decl.shape.clone(), |share| [share.whole].into()),
        dtype: decl.dtype,
        place: Place::State(state),
    });
    params.chain(states).collect()
}

fn state_key(name: &str) -> String {
    format!("state:{name}")
}

/// Writes tensors to a session.
fn write<'a>(session: &mut Session, tensors: impl Iterator<Item = (&'a Wanted, Data)>) -> Result<()> {
    for (want, data) in tensors {
        let array = Array::new(&want.shape, data);
        match want.place {
            Place::Param(param) => session.write_param(param, &array)?,
            Place::State(state) => session.write_whole(state, &array)?,
        }
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

/// All metadata of a safetensors file.
fn all_metadata(path: &Path, bytes: &[u8]) -> Result<Metadata> {
    let (_, header) = SafeTensors::read_metadata(bytes)
        .map_err(|error| Error::Malformed { path: path.into(), why: error.to_string() })?;
    Ok(header.metadata().clone().unwrap_or_default().into_iter().collect())
}

/// All metadata of a checkpoint in a format that is known.
fn header(path: &Path, bytes: &[u8]) -> Result<Metadata> {
    let metadata = all_metadata(path, bytes)?;
    match metadata.get(FORMAT_KEY).map(String::as_str) {
        Some(FORMAT) => Ok(metadata),
        Some(found) => Err(Error::Version { path: path.into(), found: found.into(), known: FORMAT }),
        None => Err(Error::Foreign { path: path.into() }),
    }
}
