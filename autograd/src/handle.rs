//! Handles: names for the declarations of a store. Each carries the identity of its store, so that it is never taken
//! for the declaration at the same position of another store.

use std::{
    collections::BTreeSet,
    fmt,
    panic::Location,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The identity of a store, unique in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StoreId {
    number: u64,
    /// The line that made the store.
    site: &'static Location<'static>,
}

impl StoreId {
    /// A new identity, made at the caller's line.
    #[track_caller]
    pub fn fresh() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(1);
        Self { number: STORES.fetch_add(1, Ordering::Relaxed), site: Location::caller() }
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {} (made at {})", self.number, self.site)
    }
}

/// A position in the declarations of a store, with the name declared there. Handles are ordered by position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle {
    index: u32,
    store: StoreId,
    /// For messages: the store may be gone by then.
    name: &'static str,
}

impl Handle {
    pub fn new(store: StoreId, index: usize, name: &str) -> Self {
        Self { index: u32::try_from(index).expect("a store has fewer declarations"), store, name: kept(name) }
    }

    /// A handle of no existing store.
    pub fn foreign(index: u32) -> Self {
        Self { index, store: StoreId { number: 0, site: Location::caller() }, name: "" }
    }

    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Refuses this handle, which `store` has looked up; `here` is the store's own handle at this position.
    #[track_caller]
    #[cold]
    pub fn refuse(self, kind: &str, store: Option<StoreId>, here: Option<Self>) -> ! {
        let Self { index, store: own, name } = self;
        let there = match here {
            Some(here) => format!("whose {kind} {index} is {:?}", here.name),
            None => format!("which has no {kind} {index}"),
        };
        match store {
            Some(store) if store == own => {
                panic!("{kind} {name:?} of {own} was declared after the store's layout had been taken")
            }
            Some(store) => panic!("{kind} {name:?} belongs to {own}, not to {store}, {there}"),
            None => panic!("{kind} {name:?} belongs to {own}, but this tape was made without a store"),
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} of store {}", self.index, self.name, self.store.number)
    }
}

/// A name that lives as long as the process. They are few: a model that is declared again has the same.
pub(crate) fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}
