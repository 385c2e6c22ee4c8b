//! Peephole fusion: short sequences of instructions that are common in training become one instruction, and their intermediate
//! values stay in the machine's registers.

use super::{Code, Instruction};
use wgrad::op::Unary;

/// Fuses instructions over so many inputs. `kept` tells if a value is needed afterwards, `is` if a value is known to be some
/// number. Gives the remaining instructions, and the new index of each remaining value.
pub(super) fn fuse(
    inputs: usize,
    code: &[Instruction],
    kept: impl Fn(usize) -> bool,
    is: impl Fn(usize, f64) -> bool,
) -> (Vec<Instruction>, Vec<usize>) {
    let mut uses = vec![0; inputs + code.len()];
    code.iter().flat_map(Instruction::operands).for_each(|value| uses[value] += 1);
    uses.iter_mut().enumerate().for_each(|(value, uses)| *uses += usize::from(kept(value)));
    let mut fuser = Fuser { inputs, code: code.to_vec(), uses, is };
    for i in 0..code.len() {
        while let Some(fused) = fuser.fused(i) {
            let before = std::mem::replace(&mut fuser.code[i], fused);
            fused.operands().for_each(|value| fuser.uses[value] += 1);
            fuser.release(before);
        }
    }
    let mut left = vec![];
    let mut new: Vec<usize> = (0..inputs + code.len()).collect();
    for (i, &Instruction { code, of }) in fuser.code.iter().enumerate() {
        new[inputs + i] = inputs + left.len();
        if fuser.uses[inputs + i] > 0 {
            left.push(Instruction { code, of: of.map(|value| new[usize::from(value)] as u8) });
        }
    }
    (left, new)
}

impl Instruction {
    pub(super) fn operands(&self) -> impl Iterator<Item = usize> + use<> {
        let (of, arity) = (self.of, self.code.arity());
        of.into_iter().take(arity).map(usize::from)
    }
}

struct Fuser<F> {
    inputs: usize,
    code: Vec<Instruction>,
    /// The number that need each value.
    uses: Vec<usize>,
    is: F,
}

impl<F: Fn(usize, f64) -> bool> Fuser<F> {
    /// Removes one use of each operand of an instruction.
    fn release(&mut self, instruction: Instruction) {
        for value in instruction.operands() {
            self.uses[value] -= 1;
            if self.uses[value] == 0 && value >= self.inputs {
                self.release(self.code[value - self.inputs]);
            }
        }
    }

    /// The instruction that computes a value, if the value has so many uses.
    fn made(&self, value: u8, uses: usize) -> Option<(Code, [u8; 5])> {
        let i = usize::from(value).checked_sub(self.inputs)?;
        let Instruction { code, of } = self.code[i];
        (self.uses[usize::from(value)] == uses).then_some((code, of))
    }

    /// The substitute for an instruction and for those before it that nothing else needs.
    fn fused(&self, i: usize) -> Option<Instruction> {
        let Instruction { code, of: [a, b, c, ..] } = self.code[i];
        let once = |value: u8| self.made(value, 1);
        let (code, of) = match (code, once(a), once(b)) {
            (Code::Mul, Some((Code::Mul, [p, q, ..])), _) => (Code::Mul3, [p, q, b, p, p]),
            (Code::Mul, _, Some((Code::Mul, [p, q, ..]))) => (Code::Mul3, [p, q, a, p, p]),
            (Code::Mul, Some((Code::Sub, [p, q, ..])), _) => (Code::Deviation, [p, q, b, p, p]),
            (Code::Mul, _, Some((Code::Sub, [p, q, ..]))) => (Code::Deviation, [p, q, a, p, p]),
            (Code::Function(Unary::Exp), Some((Code::Sub, [p, q, ..])), _) => (Code::ExpSub, [p, q, p, p, p]),
            (Code::Add, Some((Code::Mul, [p, q, ..])), Some((Code::Mul, [r, s, ..]))) => (Code::Mix, [p, q, r, s, p]),
            (Code::Add, Some((Code::Mul, [p, q, ..])), Some((Code::Mul3, [r, s, t, ..])))
            | (Code::Add, Some((Code::Mul3, [r, s, t, ..])), Some((Code::Mul, [p, q, ..]))) => {
                (Code::Mix3, [p, q, r, s, t])
            }
            (Code::Add, Some((Code::Mix, [p, q, r, s, ..])), _) => (Code::MixAdd, [p, q, r, s, b]),
            (Code::Add, _, Some((Code::Mix, [p, q, r, s, ..]))) => (Code::MixAdd, [p, q, r, s, a]),
            (Code::Add, Some((Code::Mul3, [p, q, r, ..])), _) => (Code::Mul3Add, [p, q, r, b, p]),
            (Code::Add, _, Some((Code::Mul3, [p, q, r, ..]))) => (Code::Mul3Add, [p, q, r, a, p]),
            (Code::Add, Some((Code::Mul, [p, q, ..])), _) => (Code::MulAdd, [p, q, b, p, p]),
            (Code::Add, _, Some((Code::Mul, [p, q, ..]))) => (Code::MulAdd, [p, q, a, p, p]),
            (Code::Sub, Some((Code::Mul, [p, q, ..])), _) => (Code::MulSub, [p, q, b, p, p]),
            (Code::Sub, _, Some((Code::Mul, [p, q, ..]))) => (Code::SubMul, [p, q, a, p, p]),
            (Code::Select, ..) => match self.root(a, b, c) {
                Some(y) => (Code::Root, [y; 5]),
                None => {
                    let [p, q] = self.less(a)?;
                    (Code::SelectLt, [p, q, b, c, p])
                }
            },
            (Code::Div, Some((Code::Mul, [s, x, ..])), Some((Code::MulAdd, [p, q, u, ..]))) => {
                let (root, y, t) = match (once(p), once(q)) {
                    (Some((root @ (Code::Sqrt | Code::Root), [y, ..])), _) => (root, y, q),
                    (_, Some((root @ (Code::Sqrt | Code::Root), [y, ..]))) => (root, y, p),
                    _ => return None,
                };
                (if root == Code::Root { Code::RootRatio } else { Code::Ratio }, [s, x, y, t, u])
            }
            _ => return None,
        };
        Some(Instruction { code, of })
    }

    /// The p and q of a condition `p < q`: a second comparison costs less than reading the result of the first.
    fn less(&self, condition: u8) -> Option<[u8; 2]> {
        let i = usize::from(condition).checked_sub(self.inputs)?;
        let Instruction { code, of: [p, q, ..] } = self.code[i];
        (code == Code::Lt).then_some([p, q])
    }

    /// The y of `y == 0 ? 0 : sqrt(y == 0 ? 1 : y)`.
    fn root(&self, condition: u8, nothing: u8, root: u8) -> Option<u8> {
        let (Code::Sqrt, [safe, ..]) = self.made(root, 1)? else { return None };
        let (Code::Select, [same, one, y, ..]) = self.made(safe, 1)? else { return None };
        let (Code::Eq, [p, q, ..]) = self.made(condition, 2)? else { return None };
        let is = |value: u8, number: f64| (self.is)(usize::from(value), number);
        let compared = (p == y && is(q, 0.0)) || (q == y && is(p, 0.0));
        (same == condition && compared && is(nothing, 0.0) && is(one, 1.0)).then_some(y)
    }
}
