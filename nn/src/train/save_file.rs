//! A file that is replaced as a whole, and locked against other runs.

use crate::error::{Error, Result};
use same_file::Handle;
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata, TryLockError},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// A file to save to, which no other run saves to while this value lives.
///
/// Symbolic links are followed: the file that they lead to is replaced, or created. [`SaveFile::write`] writes beside
/// it, flushes, and renames, so that a crash leaves the old content or the new one. The new file has the mode of the
/// old one, and its owner and group if the system permits; access control lists and further hard links are not kept.
///
/// Two files stand beside the target `NAME`, in its folder: the lock `.NAME.wgrad-lock`, empty, as long as this value
/// lives, and `.NAME.wgrad-new` during a write. A process that is killed may leave both: the kernel frees the lock, and
/// the next `SaveFile` of the target takes them over and removes them. The lock is advisory (`flock`, `LockFileEx`);
/// over NFS it holds between machines if the mount has locks. If a file system has no locks, [`SaveFile::unlocked`]
/// reports it.
///
/// ```
/// # fn main() -> Result<(), wgrad_nn::Error> {
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("notes.txt");
/// let file = wgrad_nn::SaveFile::open(&path)?;
/// assert!(wgrad_nn::SaveFile::open(&path).is_err(), "it is held");
/// file.write(|to| to.write_all(b"all or nothing"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SaveFile {
    /// The path that the caller gave.
    path: PathBuf,
    /// The file that the path leads to, in a folder without links.
    target: PathBuf,
    lock: Lock,
}

/// The most symbolic links that a path may follow, as on Linux.
const MOST_LINKS: usize = 40;

impl SaveFile {
    /// Finds the file that a path leads to, checks that it may be replaced, and locks it. Its content stays as it is.
    ///
    /// # Errors
    /// [`Error::Busy`] if another `SaveFile` of this file lives, in this process or another. [`Error::Io`] if the file
    /// is not a regular one, if its mode forbids writing (even if the user could), or if its folder cannot be written
    /// to.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fail = |source| Error::Io { action: "write", path: path.into(), source };
        let target = follow(path).map_err(fail)?;
        existing(&target).map_err(fail)?;
        let lock = Lock::take(beside(&target, "lock")).map_err(fail)?;
        let lock = lock.ok_or_else(|| Error::Busy { path: path.into() })?;
        let file = Self { path: path.into(), target, lock };
        // The lock shows that the process that wrote this file has ended.
        remove(&file.new_file()).map_err(fail)?;
        Ok(file)
    }

    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The system's message if it has no locks for this file: then nothing keeps other runs from saving to it.
    pub fn unlocked(&self) -> Option<&io::Error> {
        self.lock.missing.as_ref()
    }

    /// Replaces the content by the output of a function, in one step: on an error the file stays as it was.
    ///
    /// # Errors
    /// [`Error::Io`], also if the file has become one that may not be replaced.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let new = self.new_file();
        let replaced = replace(&self.target, &new, content);
        // Return the first error. If the new file cannot be removed now, the next `SaveFile` removes it.
        replaced.inspect_err(|_| drop(remove(&new))).map_err(|source| Error::Io {
            action: "write",
            path: self.path.clone(),
            source,
        })
    }

    fn new_file(&self) -> PathBuf {
        beside(&self.target, "new")
    }
}

/// A lock file, removed when it is dropped.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    /// Holds the lock while it is open.
    _file: Handle,
    /// The reason, if there are no locks here.
    missing: Option<io::Error>,
}

impl Lock {
    /// Takes the lock; `None` if it is held.
    fn take(path: PathBuf) -> io::Result<Option<Self>> {
        loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            let file = Handle::from_file(file)?;
            let missing = match file.as_file().try_lock() {
                Ok(()) => None,
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Not every file system has locks.
                Err(TryLockError::Error(error)) => Some(error),
            };
            // The last holder may have removed the file between the open and the lock. Then others lock another file.
            if Handle::from_path(&path).is_ok_and(|there| there == file) {
                return Ok(Some(Self { path, _file: file, missing }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Remove the file before the lock is free, so that nobody locks a removed file. If it cannot be removed, it
        // stays, unlocked.
        drop(fs::remove_file(&self.path));
    }
}

/// The path of the file that a path leads to. The file need not exist, but its folder must.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    let mut links = 0;
    while let Ok(next) = fs::read_link(&target) {
        links += 1;
        if links > MOST_LINKS {
            return Err(io::Error::other("its symbolic links lead in a circle"));
        }
        target = folder(&target).join(next);
    }
    let is_folder = target.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
    let name = target.file_name().filter(|_| !is_folder).ok_or(io::ErrorKind::IsADirectory)?;
    Ok(fs::canonicalize(folder(&target))?.join(name))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path of our own hidden file beside a target.
fn beside(target: &Path, what: &str) -> PathBuf {
    let name = target.file_name().unwrap_or(OsStr::new(""));
    let parts = [OsStr::new("."), name, OsStr::new(".wgrad-"), OsStr::new(what)];
    target.with_file_name(parts.into_iter().collect::<OsString>())
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The metadata of the file that is to be replaced, if there is one.
///
/// # Errors
/// If the file may not be replaced: it is no regular file, or must not be written to.
fn existing(target: &Path) -> io::Result<Option<Metadata>> {
    let old = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        old => old?,
    };
    if old.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !old.is_file() {
        return Err(io::Error::other(format!("it is {}, no regular file", kind(&old))));
    }
    if is_read_only(&old) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its mode makes it read-only"));
    }
    // The mode may admit others and not this user. Opening the file tells, and changes nothing.
    File::options().append(true).open(target)?;
    Ok(Some(old))
}

#[cfg(unix)]
fn kind(old: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = old.file_type();
    let kinds = [
        (kind.is_char_device() || kind.is_block_device(), "a device"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
    ];
    kinds.into_iter().find(|(is, _)| *is).map_or("something else", |(_, name)| name)
}

#[cfg(not(unix))]
fn kind(_old: &Metadata) -> &'static str {
    "something else"
}

/// True if the owner may not write. The superuser could, but should not.
#[cfg(unix)]
fn is_read_only(old: &Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&old.permissions()) & 0o200 == 0
}

#[cfg(not(unix))]
fn is_read_only(old: &Metadata) -> bool {
    old.permissions().readonly()
}

/// Writes to a new file, flushes it to the disk, and renames it to the target.
fn replace(target: &Path, new: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let old = existing(target)?;
    remove(new)?;
    let mut writer = BufWriter::with_capacity(1 << 16, create(new, old.as_ref())?);
    content(&mut writer)?;
    let file = writer.into_inner()?;
    if let Some(old) = &old {
        resemble(&file, old)?;
    }
    file.sync_all()?;
    drop(file);
    fs::rename(new, target)?;
    // The rename itself is on disk once the folder is.
    if cfg!(unix) { File::open(folder(target))?.sync_all() } else { Ok(()) }
}

/// Creates a file with the mode of any new file. If it replaces another, only the owner may read it for now.
fn create(new: &Path, old: Option<&Metadata>) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if old.is_some() { 0o600 } else { 0o666 });
    #[cfg(not(unix))]
    let _ = old;
    options.open(new)
}

/// Gives a file the owner, the group and the mode of another.
#[cfg(unix)]
fn resemble(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let new = file.metadata()?;
    let mut mode = old.mode() & 0o7777;
    if (new.uid(), new.gid()) != (old.uid(), old.gid())
        && fchown(file, Some(old.uid()), Some(old.gid())).is_err()
        && new.gid() != old.gid()
        && fchown(file, None, Some(old.gid())).is_err()
    {
        // The group is another than the old one, so it gets no more rights than everybody.
        mode = mode & !0o070 | (mode & 0o007) << 3;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn resemble(_file: &File, _old: &Metadata) -> io::Result<()> {
    Ok(())
}
