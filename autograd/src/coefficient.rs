//! Coefficients of passes and optimizers: bounds, factors, rates and scales. A number out of its range is refused while
//! it is recorded. A tensor is checked by each run: if it is out of range, the step is not taken, and the run gives an
//! error.

use crate::{DType, Operand, Tape, Tensor, grads::Grads, range::Range};

impl Range {
    /// Bool scalar: true if a scalar is within the range.
    #[track_caller]
    pub fn has_on_tape(self, x: Tensor<'_>) -> Tensor<'_> {
        let (closed, least, infinite) = self.bounds();
        let above = if closed { x.greater_equal(least) } else { x.greater(least) };
        if infinite { above } else { above.and(x.is_finite()) }
    }
}

impl Tape {
    /// Refuses a number that is given as a tensor, unless it is a scalar of this tape.
    #[track_caller]
    pub(crate) fn check_scalar(&self, pass: &str, name: &str, x: Tensor<'_>) {
        self.own(x, pass);
        let shape = x.shape();
        assert!(shape.rank() == 0, "{pass}: {name} has shape {shape}, and must be a scalar{}", self.recorded_at());
    }
}

impl<'t, S> Grads<'t, S> {
    /// Checks a coefficient; every coefficient that may be a tensor goes through here. A number out of its range is
    /// refused. For a scalar tensor, the check becomes part of the verdict on the step, and the tap `<pass>/<name>`
    /// lets the run report a value out of range.
    ///
    /// # Panics
    /// If a number is out of its range, or a tensor is not a scalar.
    #[track_caller]
    pub(crate) fn coefficient(&mut self, pass: &str, name: &str, value: Operand<'t>, range: Range) {
        let tape = self.tape;
        let x = match value {
            Operand::Value(v) => {
                assert!(range.has(v), "{pass}: {name} is {v}, and must be {range}{}", tape.recorded_at());
                return;
            }
            Operand::Tensor(x) => x,
        };
        tape.check_scalar(pass, name, x);
        let judged = &mut self.history.get_mut().coefficients;
        if judged.contains(&(x.id, range)) {
            return;
        }
        judged.push((x.id, range));
        tape.alarm_of_coefficient(&format!("{pass}/{name}"), x, range);
        let x = if x.dtype().is_float() { x } else { x.cast(DType::F32) };
        // All ranks judge reduced gradients alike, or they would drift apart.
        let alone = tape.ranks() == 1 || self.history.borrow().state.is_local();
        let within = range.has_on_tape(x);
        self.and_verdict(if alone { within } else { !(!within).any_over_ranks() });
    }
}
