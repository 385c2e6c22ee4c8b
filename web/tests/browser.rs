//! The page in headless Chromium: it trains as this machine does, on the CPU and on WebGPU, and without WebGPU it says so.
//!
//! `cargo xtask hosts browser` makes the page and runs this.

use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    time::Duration,
};
use tempfile::TempDir;
use wgrad_examples::device::Place;
use wgrad_web::Play;

/// The flags of every Chromium here: it has no display, and no sandbox in a container.
const FLAGS: [&str; 6] = [
    "--headless",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--enable-logging=stderr",
    "--disable-extensions",
];

/// The longest that a page may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A message of Chromium's own, where it is asked for an adapter and has none.
const NO_ADAPTER: &str = "No available adapters.";

fn page() -> PathBuf {
    let folder = std::env::var_os("WGRAD_WEB").expect("WGRAD_WEB names the folder that `cargo xtask web` has made");
    folder.into()
}

/// Answers a request from the folder of the page, else from that of the tests. Gives what is posted.
fn answer(mut stream: TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).ok()? <= 2 {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next()?, words.next()?.trim_start_matches('/'));
    if method == "POST" {
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").ok()?;
        return String::from_utf8(body).ok();
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let found = [page(), here].iter().find_map(|folder| fs::read(folder.join(path)).ok());
    let kind = match path.rsplit('.').next() {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    };
    let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
    let body = found.unwrap_or_default();
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).ok()?;
    None
}

/// Ends a browser when it is no longer looked at.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The findings that a page of the tests posts, and the lines of its console.
fn posted(page: &str, flags: &[&str]) -> (Value, Vec<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("it has one");
    let profile = TempDir::new().expect("a folder");
    let log = profile.path().join("log");
    let name = std::env::var("WGRAD_BROWSER").unwrap_or_else(|_| "chromium".into());
    let browser = Command::new(name)
        .args(FLAGS)
        .args(flags)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{address}/{page}"))
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).expect("a file"))
        .spawn()
        .expect("Chromium starts");
    let browser = Browser(browser);
    let (send, receive) = channel();
    std::thread::spawn(move || {
        // Each connection by itself: browsers open some that they say nothing on.
        for stream in listener.incoming().flatten() {
            let send = send.clone();
            std::thread::spawn(move || answer(stream).map(|body| send.send(body)));
        }
    });
    let body = receive.recv_timeout(PATIENCE).expect("the page posts what it has found, in time");
    drop(browser);
    let said = fs::read(&log).expect("there is a log");
    let said = String::from_utf8_lossy(&said);
    let told = said.lines().filter(|line| line.contains("CONSOLE") && !line.contains(NO_ADAPTER));
    let console = told.map(String::from).collect();
    (serde_json::from_str(&body).expect("JSON"), console)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect()
}

/// The largest difference between losses, relative to the larger of 1 and the loss.
fn difference(have: &[f64], want: &[f64]) -> f64 {
    assert_eq!(have.len(), want.len());
    have.iter().zip(want).map(|(have, want)| (have - want).abs() / want.abs().max(1.0)).fold(0.0, f64::max)
}

fn native(cured: bool) -> Play {
    let mut play = Play::open(&Place::Cpu { threads: 1 }, cured, 0).expect("the CPU opens");
    play.steps(100).expect("it trains");
    play
}

#[test]
#[ignore = "cargo xtask hosts browser makes the page, and runs this"]
fn the_page_trains_as_this_machine_does() {
    let (found, console) = posted("check.html", &["--enable-unsafe-webgpu"]);
    assert!(found["errors"].as_array().expect("a list").is_empty(), "{}", found["errors"]);
    assert!(console.is_empty(), "{console:#?}");
    assert_eq!(found["why"], Value::Null, "there is WebGPU");
    let [plain, cured] = [false, true].map(native);
    for (name, play) in [("plain", &plain), ("cured", &cured)] {
        // Exploding gradients make of a rounding a difference of 1e-3 in ten steps: the first two tell.
        let count = if name == "plain" { 2 } else { 100 };
        for (device, bound) in [("cpu", 1e-5), ("gpu", 1e-3)] {
            let run = &found[format!("{device} {name}")];
            let losses = numbers(&run["losses"]);
            assert_eq!(losses.len(), 100);
            let by = difference(&losses[..count], &play.losses()[..count]);
            println!("{device} {name} on {}: {count} losses within {by:.1e}", run["device"]);
            assert!(by <= bound, "{device} {name}: {by} beyond {bound}");
            assert_eq!(numbers(&run["flow"]).len(), play.flow().len());
        }
    }
    let apart = difference(plain.losses(), cured.losses());
    assert!(apart > 1e-2, "the cure changes losses, which the bounds would find: {apart}");
}

#[test]
#[ignore = "cargo xtask hosts browser makes the page, and runs this"]
fn without_webgpu_the_page_says_so_and_trains_on_the_cpu() {
    let (found, console) =
        posted("page.html", &["--disable-gpu", "--disable-features=WebGPU", "--disable-blink-features=WebGPU"]);
    assert!(found["errors"].as_array().expect("a list").is_empty(), "{}", found["errors"]);
    assert!(console.is_empty(), "{console:#?}");
    let text = |key: &str| found[key].as_str().expect("a text").to_string();
    println!("{}\n{}\n{}", text("first"), text("last"), text("summary"));
    assert!(text("first").contains("WebGPU") && text("first").ends_with("the CPU trains."), "{}", text("first"));
    assert_eq!(found["gpu"], true, "it cannot be chosen");
    assert!(text("last").starts_with("Step 400 of 400"), "{}", text("last"));
    assert!(found["loss"].as_u64() >= Some(2) && found["flow"].as_u64() >= Some(2), "both runs are drawn: {found}");
    assert!(found["wide"].as_i64() <= Some(0), "nothing is wider than a phone: {found}");
}
