//! The index of golden vectors, or their file of traces, of any bytes: whatever an attribute is, it can be asked for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wgrad_examples::verify::{Attributes, Case, Index, Trace};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(index) = Index::parse(bytes) {
        index.cases.iter().for_each(read);
    }
    if let Ok(traces) = Trace::parse(bytes) {
        assert!(traces.iter().all(|trace| trace.id.len() <= bytes.len()));
    }
});

fn read(case: &Case) {
    let attrs = Attributes(&case.attrs);
    for name in case.attrs.keys().map(String::as_str) {
        if attrs.get(name).is_none() {
            assert!(attrs.number(name).is_err() && attrs.number_or(name, 2.0).is_ok_and(|number| number == 2.0));
        }
        let _ = (attrs.number_or(name, 1.0), attrs.integer(name), attrs.flag(name), attrs.text(name), attrs.list(name));
        let _ = (attrs.texts(name), attrs.pair(name), attrs.pairs(name), attrs.extents(name));
        if let Ok(inner) = attrs.object(name) {
            inner.0.keys().for_each(|name| drop(inner.number(name)));
        }
        for rank in 0..4 {
            assert!(attrs.axis(name, rank).ok().is_none_or(|axis| axis < rank));
            assert!(attrs.axes(name, rank).ok().is_none_or(|axes| axes.iter().all(|axis| *axis < rank)));
        }
        if let Ok(extent) = attrs.extent(name) {
            assert_eq!(attrs.pair(name).ok(), Some([extent, extent]));
        }
    }
}
