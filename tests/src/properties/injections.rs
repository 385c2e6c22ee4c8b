//! Injections of non-finite numbers into any value of a training step.

use super::Property;
use crate::injection::injection;
use proptest::prelude::*;

pub(super) fn properties() -> Vec<Property> {
    vec![Property::new("what_is_not_finite_skips_the_step", 512, injection(10, false), |case| {
        case.check().map(drop).map_err(TestCaseError::fail)
    })]
}
