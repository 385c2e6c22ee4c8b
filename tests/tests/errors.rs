//! Mistakes: shapes that do not fit panic at the caller's line while recording; whatever depends on data is an error that
//! leaves every state as it was.

use std::{cell::RefCell, panic, sync::Once};
use wgrad::{Array, Cell, DType, Error, Recurrence, Store, Tape, Tensor, hessian, hvp, jacobian, jvp, vjp};
use wgrad_tests::{Machine, reference};

const F32: DType = DType::F32;

thread_local! {
    /// Message, file and line of this thread's last panic.
    static LAST: RefCell<Option<(String, String, u32)>> = const { RefCell::new(None) };
}

/// Runs `f`, which must panic, and gives the message, file and line.
fn panicking(f: impl FnOnce()) -> (String, String, u32) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let text = |p: &dyn std::any::Any| {
                p.downcast_ref::<String>().cloned().or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()))
            };
            let message = text(info.payload()).unwrap_or_default();
            let at = info.location().expect("panics have a place");
            LAST.with(|last| *last.borrow_mut() = Some((message, at.file().into(), at.line())));
            before(info);
        }));
    });
    panic::catch_unwind(panic::AssertUnwindSafe(f)).expect_err("it must panic");
    LAST.with(|last| last.borrow_mut().take()).expect("the hook has run")
}

/// Requires a panic at this very line whose message has all these parts.
macro_rules! refused {
    ($f:expr, $($part:expr),+ $(,)?) => {{
        let (message, file, line) = panicking(|| { let _ = $f; });
        assert!(file == file!() && line == line!(), "{message:?} is blamed on {file}:{line}, not on line {}", line!());
        for part in [$($part),+] {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }};
}

#[test]
#[rustfmt::skip] // A macro call is blamed on its first line.
fn misuse_panics_at_the_callers_line_with_op_and_shapes() {
    let t = Tape::default();
    let x = t.input("x", [2, 3], F32);
    let y = t.input("y", [4], F32);
    let wide = t.input("wide", [2, 3], DType::F64);
    let index = t.input("index", [2, 3], DType::U32);
    let mask = x.less(0.0);
    let z = t.input("z", [5, 2, 3], F32);
    let (w, h0) = (t.input("w", [3, 3], F32), t.input("h0", [2, 3], F32));
    let sequence = |z, w_hh, h0| Recurrence { cell: Cell::Tanh, z, w_hh, h0, c0: None, b_hh: None };
    assert_eq!(*sequence(z, w, h0).run().0.shape(), *z.shape());
    refused!(sequence(z, w, y).run(), "sequence", "h0 must be [2, 3], not [4]");
    refused!(sequence(x, w, h0).run(), "sequence", "z needs 3 dimensions");
    refused!(sequence(z, x, h0).run(), "sequence", "w_hh must be [3, 3], not [2, 3]");
    refused!(sequence(z, w, wide).run(), "sequence", "h0 is f64");
    refused!(sequence(z.slice(0, 0, 0), w, h0).run(), "sequence", "at least one time step");
    refused!(sequence(z, w, y).unrolled(), "sequence", "h0 must be [2, 3], not [4]");
    refused!(Recurrence { c0: Some(h0), ..sequence(z, w, h0) }.run(), "tanh", "nothing else, has a memory");
    refused!(Recurrence { cell: Cell::Gru, ..sequence(z, w, h0) }.run(), "gru", "a recurrent bias");
    refused!(x + y, "add", "[2, 3]", "[4]");
    refused!(x * y, "mul", "[2, 3]", "[4]");
    refused!(x / wide, "div", "f32[2, 3]", "f64[2, 3]", "types differ");
    refused!(x.maximum(y), "max", "[2, 3]", "[4]");
    refused!(x.less(index), "less", "f32", "u32");
    refused!(mask.select(x, y), "select", "[2, 3]", "[4]");
    refused!(x.select(x, x), "select", "bool");
    refused!(index.sin(), "sin", "u32[2, 3]");
    refused!(mask + mask, "add", "bool");
    refused!(!x, "not", "f32[2, 3]");
    refused!(x.matmul(x), "matmul", "[2, 3]", "3 and 2");
    refused!(x.matmul(y), "matmul", "[2, 3]", "[4]");
    refused!(x.matmul_t(wide), "matmul", "f32", "f64");
    refused!(x.reshape([4]), "reshape", "[2, 3]", "[4]");
    refused!(x.permute(&[0, 0]), "permute", "[2, 3]", "[0, 0]");
    refused!(y.transpose(), "transpose", "[4]");
    refused!(x.broadcast_to([3, 3]), "broadcast", "[2, 3]", "[3, 3]");
    let (key, counter) = (t.table(&[1.0, 2.0], DType::U32), t.scalar(0.0, DType::U32));
    refused!(t.random(index, counter, 0, [2]), "random", "u32[2, 3]", "a key of u32[2]");
    refused!(t.random(key, y, 0, [2]), "random", "f32[4]", "a counter of u32[]");
    refused!(t.random(key, counter, 0, [1 << 32, 2]), "random", "more than 2^32");
    refused!(x.slice(1, 2, 2), "slice", "[2, 3]", "axis 1");
    refused!(x.slice(2, 0, 1), "slice", "[2, 3]", "no axis 2");
    refused!(x.slice_step(1, 1, 3, -1), "slice", "[2, 3]");
    refused!(x.slice_step(1, 1, 2, 0), "slice", "[2, 3]");
    refused!(Tensor::concat(&[x, y], 0), "concat", "[2, 3]", "[4]");
    refused!(Tensor::concat(&[], 0), "concat");
    refused!(x.sum_axes(&[0, 2]), "sum", "[2, 3]", "no axis 2");
    refused!(x.sum_axes(&[1, 1]), "sum", "[2, 3]", "twice");
    refused!(x.argmax(2), "argmax", "[2, 3]", "no axis 2");
    refused!(x.gather(y, 0), "gather", "[2, 3]", "[4]");
    refused!(x.gather(x, 0), "gather", "u32", "f32");
    refused!(x.scatter_add(index.slice(1, 0, 2), 0, 4), "scatter_add", "[2, 3]", "[2, 2]");
    refused!(x.cross_entropy(index), "cross_entropy", "[2, 3]");
    refused!(x.grad_wrt(&[x]), "grad", "f32[2, 3]", "scalar");
    refused!(index.on_grad(|g| g), "on_grad", "u32");
    refused!(x.vjp(y, &[x]), "vjp", "[2, 3]", "[4]");
    refused!(t.input("x", [3], F32), "\"x\"", "f32[3]", "an input of this name exists already");
    refused!(jvp(|x| x, x, y), "jvp of f32[2, 3]", "the tangent of argument 0 is f32[4]", "the argument is f32[2, 3]");
    refused!(jvp(|[x, _]| x, [x, y], [x, x]), "jvp of f32[2, 3] and f32[4]", "the tangent of argument 1 is f32[2, 3]");
    refused!(jvp(|x| x[0], vec![x, y], vec![x]), "jvp of f32[2, 3] and f32[4]", "1 tangents for 2 arguments");
    refused!(jvp(|x| x, index, index), "jvp of u32[2, 3]", "argument 0 is not of floats");
    refused!(vjp(|x| x.sum(), x, x), "vjp of f32[2, 3]", "the cotangent is f32[2, 3], and the value is f32[]");
    refused!(vjp(|_| index, x, x), "vjp of f32[2, 3]", "the function gives u32[2, 3], which has no derivative");
    refused!(vjp(|x| x, x, wide), "vjp of f32[2, 3]", "the cotangent is f64[2, 3]");
    refused!(jacobian(|_: [Tensor<'_>; 0]| x, []), "jacobian", "a function of no arguments");
    refused!(jacobian(|x| x, mask), "jacobian of bool[2, 3]", "argument 0 is not of floats");
    refused!(hessian(|x| x, x), "hessian of f32[2, 3]", "the function gives f32[2, 3], and must give a scalar");
    refused!(hvp(|x| x.sum(), x, y), "hvp of f32[2, 3]", "the vector of argument 0 is f32[4]");
    refused!(hvp(|x| x, x, x), "hvp of f32[2, 3]", "must give a scalar");
    refused!(jvp(|x| x, x, Tape::default().input("z", [2, 3], F32)), "jvp", "another tape");
    let other = Tape::default();
    refused!(jacobian(|_| other.scalar(1.0, F32), x), "jacobian", "another tape");
    refused!(x + Tape::default().input("z", [2, 3], F32), "add", "another tape");
    refused!(Tape::default().node(x.id()), "node %0", "the tape has 0 nodes");
    refused!(Tape::default().tensor(x.id()), "tensor %0", "the tape has 0 nodes");
}

#[test]
#[rustfmt::skip] // A macro call is blamed on its first line.
fn misuse_of_stores_and_states_panics_at_the_callers_line() {
    let mut store = Store::new();
    let s = store.state("s", &Array::zeros([2], F32));
    store.param("w", &Array::zeros([3], F32));
    let t = Tape::new(std::sync::Arc::new(store.layout().clone()));
    refused!(t.assign(s, t.full([3], 0.0, F32)), "\"s\"", "f32[2]", "f32[3]");
    refused!(store.state("s", &Array::zeros([2], F32)), "\"s\"", "twice");
    refused!(store.param("w", &Array::zeros([3], F32)), "\"w\"", "twice");
    refused!(store.param("i", &Array::zeros([3], DType::U32)), "\"i\"", "u32");
    let params = store.params();
    store.like_arenas("momentum", &params);
    refused!(store.param("late", &Array::zeros([3], F32)), "\"late\"", "before the optimizer");
    refused!(Array::new([3], vec![1.0f32]), "[3]");
    refused!(wgrad::LossScaler::fixed(0.0), "loss scale", "0");
}

#[test]
fn a_hook_that_changes_the_shape_panics_in_the_sweep() {
    let t = Tape::default();
    let x = t.input("x", [2, 3], F32);
    let y = x.on_grad(|g| g.sum());
    let (message, ..) = panicking(|| drop(y.sum().grad_wrt(&[x])));
    assert!(message.contains("hook") && message.contains("[2, 3]"), "{message}");
    let z = t.custom_vjp(&[x], |x| vec![x[0] * 2.0], |v| vec![v.cotangents[0].map(|g| g.sum())]);
    let (message, ..) = panicking(|| drop(z[0].sum().grad_wrt(&[x])));
    assert!(message.contains("gradient rule of custom") && message.contains("[2, 3]"), "{message}");
    let z = t.custom_vjp(&[x], |x| vec![x[0] * 3.0], |_| vec![]);
    let (message, ..) = panicking(|| drop(z[0].sum().grad_wrt(&[x])));
    assert!(message.contains("0 cotangents for 1 inputs"), "{message}");
}

/// A counter, and a program that adds an input `x` of shape `[2]` to it.
fn counter() -> (Machine, wgrad::StateId, wgrad::Step) {
    let mut store = Store::new();
    let s = store.state("s", &Array::new([2], vec![1.0f32, 2.0]));
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| t.assign(s, t.state(s) + t.input("x", [2], F32))).expect("the plan compiles");
    (cpu, s, step)
}

#[test]
fn inputs_that_are_missing_unknown_or_mismatched_are_errors_that_change_nothing() {
    let (mut cpu, s, step) = counter();
    let before = cpu.states();
    let (fits, short, wide) = (Array::zeros([2], F32), Array::zeros([1], F32), Array::zeros([2], DType::F64));
    let missing = cpu.session.run(&step, &[]).expect_err("missing");
    assert!(matches!(&missing, Error::MissingInput { name, dtype: DType::F32, .. } if name == "x"), "{missing}");
    let unknown = cpu.session.run(&step, &[("x", &fits), ("z", &fits)]).expect_err("unknown");
    assert!(matches!(&unknown, Error::UnknownInput { name, known } if name == "z" && known == "x"), "{unknown}");
    for wrong in [&short, &wide] {
        let mismatch = cpu.session.run(&step, &[("x", wrong)]).expect_err("mismatched");
        assert!(matches!(&mismatch, Error::Mismatch { have_dtype, .. } if *have_dtype == wrong.dtype()), "{mismatch}");
        let mismatch = cpu.session.write(s, wrong).expect_err("mismatched");
        assert!(matches!(mismatch, Error::Mismatch { .. }));
    }
    assert!(cpu.states_are(&before));
    cpu.session.run(&step, &[("x", &Array::new([2], vec![10.0f32, 20.0]))]).expect("the session is intact");
    assert_eq!(cpu.states()[0].to_f64(), [11.0, 22.0]);
}

#[test]
fn a_program_of_another_session_is_refused() {
    let (mut mine, ..) = counter();
    let (_, _, foreign) = counter();
    let refused = mine.session.run(&foreign, &[("x", &Array::zeros([2], F32))]);
    assert!(matches!(refused, Err(Error::ForeignProgram { .. })));
}

#[test]
fn an_index_out_of_range_names_its_line_and_changes_nothing() {
    let mut store = Store::new();
    let table = store.state("table", &Array::new([3, 2], vec![0.5f32; 6]));
    let count = store.state("count", &Array::zeros([], F32));
    let mut cpu = Machine::poisoned(2, store);
    let mut lines = (0, 0);
    let step = cpu.session.record(|t| {
        let index = t.input("index", [2, 2], DType::U32);
        t.assign(count, t.state(count) + 1.0);
        let gathered = t.state(table).gather(index, 0);
        lines.0 = line!() - 1;
        let scattered = gathered.scatter_add(t.input("to", [2, 2], DType::U32), 0, 3);
        lines.1 = line!() - 1;
        t.assign(table, scattered);
    });
    let step = step.expect("the plan compiles");
    let index = |values: [u32; 4]| Array::new([2, 2], values.to_vec());
    let before = cpu.states();
    let cases =
        [("gather", [0, 3, 1, 2], [0; 4], 3, lines.0), ("scatter_add", [0; 4], [0, 1, u32::MAX, 2], u32::MAX, lines.1)];
    for (name, from, to, bad, at) in cases {
        let inputs = [("index".to_string(), index(from)), ("to".to_string(), index(to))];
        let error = cpu.session.run(&step, &wgrad_tests::named(&inputs)).expect_err("out of range");
        let Error::IndexOutOfRange { op, index, extent, site } = &error else { panic!("{error}") };
        assert_eq!((*op, *index, *extent), (name, bad, 3));
        assert_eq!((site.file(), site.line()), (file!(), at), "{error}");
        assert!(error.to_string().contains(&format!("errors.rs:{at}")), "{error}");
        assert!(cpu.states_are(&before), "{name}: a state changed");
        let reference = wgrad_cpu::reference::run(
            &step,
            &before.iter().map(|a| a.data().clone()).collect::<Vec<_>>(),
            &wgrad_tests::named(&inputs),
        );
        assert!(matches!(reference, Err(Error::IndexOutOfRange { .. })), "the reference agrees");
    }
    let good = [("index".to_string(), index([0, 2, 1, 2])), ("to".to_string(), index([0, 1, 2, 2]))];
    let states: Vec<_> = before.iter().map(|a| a.data().clone()).collect();
    let expected = reference(&step, &states, &good);
    let out = cpu.run(&step, &good);
    assert_eq!(out.states.iter().map(Array::to_f64).collect::<Vec<_>>(), expected.states);
}

#[test]
fn an_index_out_of_range_in_the_backward_pass_blames_the_forward_line() {
    let mut cpu = Machine::poisoned(1, Store::new());
    let mut at = 0;
    let step = cpu.session.record(|t| {
        let x = t.input("x", [3], F32);
        let picked = x.gather(t.input("index", [2], DType::U32), 0);
        at = line!() - 1;
        // Only the gradient is wanted, so only the scatter of the backward pass runs.
        t.tap("dx", picked.sum().grad_wrt(&[x])[0].expect("reached"));
    });
    let step = step.expect("the plan compiles");
    let error = cpu.session.run(&step, &[("x", &Array::zeros([3], F32)), ("index", &Array::new([2], vec![1u32, 5]))]);
    let Err(Error::IndexOutOfRange { op, site, .. }) = &error else { panic!("{error:?}") };
    assert_eq!((*op, site.file(), site.line()), ("scatter_add", file!(), at));
}

#[test]
fn one_name_stands_for_one_place_in_the_code() {
    let (mut cpu, s, _) = counter();
    let (two, three) = (Array::zeros([2], F32), Array::zeros([3], F32));
    fn program(t: &Tape, s: wgrad::StateId, len: usize) {
        t.assign(s, t.state(s) + t.input("x", [len], F32).sum());
    }
    for _ in 0..3 {
        let run =
            |cpu: &mut Machine, x: &Array, len| cpu.session.run_cached("add", &[("x", x)], |t| program(t, s, len));
        run(&mut cpu, &two, 2).expect("the first place");
        run(&mut cpu, &three, 3).expect("another shape is another program of that place");
    }
    let before = cpu.states();
    let at = line!() + 1;
    let again = cpu.session.run_cached("add", &[("x", &two)], |t| program(t, s, 2)).expect_err("another place");
    assert!(matches!(&again, Error::NameTaken { name, second, .. } if name == "add" && second.line() == at), "{again}");
    let four = Array::zeros([4], F32);
    let again = cpu.session.run_cached("add", &[("x", &four)], |t| program(t, s, 4)).expect_err("shapes do not matter");
    assert!(matches!(&again, Error::NameTaken { .. }), "{again}");
    assert!(cpu.states_are(&before));
}

#[test]
fn integers_that_do_not_fit_are_refused() {
    assert!(matches!(Array::from_i64([2], &[3, -1]), Err(Error::IntegerRange { value: -1 })));
    assert!(matches!(Array::from_i64([1], &[1 << 32]), Err(Error::IntegerRange { .. })));
    assert_eq!(Array::from_i64([2], &[3, 4294967295]).expect("they fit").to_f64(), [3.0, 4294967295.0]);
}
