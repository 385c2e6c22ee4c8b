//! Files that are replaced whole: where links lead, what stays, what is refused, and who may write.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};
use wgrad_nn::{Error, SaveFile};

/// Replaces a file by a text.
fn put(path: impl AsRef<Path>, text: &str) -> Result<(), Error> {
    SaveFile::open(path)?.write(|to| to.write_all(text.as_bytes()))
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("it can be read")
}

/// The names in a folder, hidden ones too.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Asserts that a path is refused by a sentence that names it and says this.
#[track_caller]
fn refused(path: &Path, why: &str) {
    let error = SaveFile::open(path).expect_err(why).to_string();
    assert!(error.starts_with(&format!("cannot write {}: ", path.display())) && error.contains(why), "{error}");
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    put(&path, "old").expect("a new file");
    let file = SaveFile::open(&path).expect("it can be written");
    let error = file.write(|to| {
        to.write_all(&[0; 1 << 20])?;
        Err(io::Error::other("the end of the world"))
    });
    let error = error.expect_err("it is told").to_string();
    assert_eq!(error, format!("cannot write {}: the end of the world", path.display()));
    assert_eq!(text(&path), "old");
    assert_eq!(names(folder.path()), [".file.wgrad-lock", "file"]);
    file.write(|to| to.write_all(b"new")).expect("it can be written still");
    drop(file);
    assert_eq!((text(&path).as_str(), names(folder.path())), ("new", vec!["file".to_string()]));
}

#[test]
fn a_file_is_held_by_one_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let held = SaveFile::open(&path).expect("a new file");
    assert!(held.unlocked().is_none(), "{:?}", held.unlocked());
    let error = SaveFile::open(folder.path().join("./file")).expect_err("it is held");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    refused(&path, "another run that has not ended saves to it");
    put(folder.path().join("other"), "another file").expect("it is free");
    drop(held);
    put(&path, "free").expect("it is free again");
}

/// Who removes the lock file while another waits for it must not let two in.
#[test]
fn never_do_two_hold_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    match SaveFile::open(&path) {
                        Ok(file) => {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                            held.fetch_add(1, Ordering::SeqCst);
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(file);
                        }
                        Err(Error::Busy { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(held.load(Ordering::SeqCst) > 100);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn what_a_killed_writer_has_left_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in [".file.wgrad-lock", ".file.wgrad-new", ".other.wgrad-new"] {
        fs::write(folder.path().join(name), "half").expect("writable");
    }
    put(folder.path().join("file"), "whole").expect("nobody holds it");
    assert_eq!(names(folder.path()), [".other.wgrad-new", "file"], "what is another file's stays");
}

#[test]
fn places_where_no_file_can_be_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("folder")).expect("can be made");
    fs::write(at("file"), "").expect("writable");
    for name in ["folder", "folder/", "file/below", "nowhere/file", "nowhere/", ".", "..", "folder/.."] {
        assert!(matches!(SaveFile::open(at(name)), Err(Error::Io { action: "write", .. })), "{name}");
    }
    assert!(SaveFile::open("").is_err() && SaveFile::open("/").is_err());
    assert_eq!(names(folder.path()), ["file", "folder"]);
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        net::UnixListener,
    };

    fn mode(path: impl AsRef<Path>) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn the_file_that_links_lead_to_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).expect("can be made");
        fs::write(at("a/b/real"), "old").expect("writable");
        for (link, to) in [
            ("relative", "a/b/real".into()),
            ("absolute", at("a/b/real")),
            ("chain", "relative".into()),
            ("a/up", "../chain".into()),
            ("dangling", "a/new".into()),
            ("folder", "a/b".into()),
        ] {
            symlink(to, at(link)).expect("can be made");
        }
        for link in ["relative", "absolute", "chain", "a/up", "folder/real"] {
            put(at(link), link).expect(link);
            assert_eq!(text(at("a/b/real")), link);
            assert_eq!(names(&at("a/b")), ["real"], "written beside its target");
        }
        put(at("dangling"), "made").expect("the file is made that it leads to");
        assert_eq!(text(at("a/new")), "made");
        for link in ["relative", "absolute", "chain", "a/up", "dangling"] {
            assert!(fs::symlink_metadata(at(link)).expect("there").is_symlink(), "{link} is a link still");
        }
        let held = SaveFile::open(at("relative")).expect("free");
        refused(&at("a/b/real"), "another run");
        refused(&at("a/up"), "another run");
        drop(held);
        symlink("two", at("one")).expect("can be made");
        symlink("one", at("two")).expect("can be made");
        refused(&at("one"), "in a circle");
        symlink("nowhere/file", at("lost")).expect("can be made");
        refused(&at("lost"), "");
    }

    #[test]
    fn the_mode_stays_and_a_new_file_has_that_of_any_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("plain"), "").expect("writable");
        put(at("new"), "").expect("writable");
        assert_eq!(mode(at("new")), mode(at("plain")));
        for bits in [0o600, 0o640, 0o664, 0o666, 0o755, 0o200] {
            set_mode(&at("plain"), bits);
            // An owner that may not read may write all the same.
            put(at("plain"), "again").expect("writable");
            assert_eq!(mode(at("plain")), bits, "{bits:o}");
        }
    }

    /// Only the superuser may give files away: for others there is no such file here.
    #[test]
    fn the_owner_stays_where_the_system_lets_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "").expect("writable");
        let ours = fs::metadata(&path).expect("there").uid();
        let given = chown(&path, Some(12345), Some(54321)).is_ok();
        set_mode(&path, 0o660);
        put(&path, "again").expect("writable");
        let now = fs::metadata(&path).expect("there");
        assert_eq!((now.uid(), mode(&path)), (if given { 12345 } else { ours }, 0o660));
        assert!(!given || now.gid() == 54321);
    }

    #[test]
    fn what_is_no_regular_file_or_read_only_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let status = std::process::Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo starts");
        assert!(status.success());
        let _socket = UnixListener::bind(at("socket")).expect("can be made");
        symlink("/dev/null", at("device")).expect("can be made");
        fs::write(at("locked"), "precious").expect("writable");
        let before = names(folder.path());
        refused(&at("pipe"), "it is a pipe, no regular file");
        refused(&at("socket"), "it is a socket, no regular file");
        refused(&at("device"), "it is a device, no regular file");
        for bits in [0o400, 0o444, 0o000, 0o466] {
            set_mode(&at("locked"), bits);
            refused(&at("locked"), "its mode makes it read-only");
        }
        assert_eq!((text(at("locked")).as_str(), names(folder.path())), ("precious", before));
        // Also where it becomes so after it was opened.
        set_mode(&at("locked"), 0o600);
        let file = SaveFile::open(at("locked")).expect("writable now");
        set_mode(&at("locked"), 0o400);
        let error = file.write(|to| to.write_all(b"lost")).expect_err("no longer").to_string();
        assert!(error.contains("its mode makes it read-only"), "{error}");
        assert_eq!(text(at("locked")), "precious");
    }
}
