//! The properties of random tapes, in one table. Each has a test that tries some tapes; the fuzzer tries all properties
//! without end.

mod devices;
mod gradients;
mod injections;
mod plans;
mod recipes;
mod segments;
mod squares;
mod steps;
mod wgpu;

pub(crate) use devices::CASTS;
use proptest::{
    strategy::Strategy,
    test_runner::{TestCaseResult, TestError, TestRunner},
};
use std::fmt;
pub use steps::lossy_steps;

/// A wrapper of each check, which may count the check or leave it out.
pub type Around<'a> = &'a dyn Fn(&dyn Fn() -> TestCaseResult) -> TestCaseResult;

/// A property that must hold for every random tape of a kind.
pub struct Property {
    /// The property's name, which is also the name of its test.
    pub name: &'static str,
    /// The number of tapes that its test tries.
    pub cases: u32,
    run: Box<Run>,
}

type Run = dyn Fn(&mut TestRunner, Around<'_>) -> Result<(), TestError<String>>;

/// A tape that fails, shrunk as far as proptest could.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The property that does not hold.
    pub property: &'static str,
    /// The failure.
    pub why: String,
    /// The smallest case, as Rust, and the tape that it records. Empty if too many cases were rejected.
    pub case: String,
}

impl Property {
    /// A property of the cases of a strategy.
    pub fn new<S: Strategy + 'static>(
        name: &'static str,
        cases: u32,
        strategy: S,
        check: fn(&S::Value) -> TestCaseResult,
    ) -> Self {
        let run = move |runner: &mut TestRunner, around: Around<'_>| {
            runner.run(&strategy, |case| around(&|| check(&case))).map_err(|error| match error {
                TestError::Abort(why) => TestError::Abort(why),
                TestError::Fail(why, case) => TestError::Fail(why, format!("{case:?}")),
            })
        };
        Self { name, cases, run: Box::new(run) }
    }

    /// True if the property is about the wgpu backend.
    pub fn needs_gpu(&self) -> bool {
        wgpu::properties().iter().any(|property| property.name == self.name)
    }

    /// Checks as many cases as the runner's configuration says, each in the wrapper `around`. A panic is a failure.
    ///
    /// # Errors
    /// The first failure, shrunk.
    pub fn run(&self, runner: &mut TestRunner, around: Around<'_>) -> Result<(), Failure> {
        (self.run)(runner, around).map_err(|error| {
            let (why, case) = match error {
                TestError::Abort(why) => (why, String::new()),
                TestError::Fail(why, case) => (why, case),
            };
            Failure { property: self.name, why: why.message().into(), case }
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} does not hold: {}\nsmallest case:\n{}", self.property, self.why, self.case)
    }
}

/// All properties.
pub fn properties() -> Vec<Property> {
    [
        plans::properties(),
        devices::properties(),
        gradients::properties(),
        steps::properties(),
        squares::properties(),
        segments::properties(),
        recipes::properties(),
        injections::properties(),
        wgpu::properties(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Runs the test of a property.
///
/// # Panics
/// If the property does not hold, or there is none of this name.
pub fn hold(name: &str) {
    let property = properties().into_iter().find(|property| property.name == name);
    let property = property.unwrap_or_else(|| panic!("there is no property {name}"));
    let mut runner = TestRunner::new(crate::proptest_config(property.cases));
    property.run(&mut runner, &|check| check()).unwrap_or_else(|failure| panic!("{failure}"));
}
