//! My model or my GPU: wrong arithmetic of a device is blamed on the device, operation by operation; a model that breaks is not.

use wgrad::{
    Array, Backend, Collective, Conv2d, DType, Data, Parting, PartingOf, Program, Result, Session,
    backend::{BufferId, Delivery, ExecutableId, SnapshotId},
    op::{Binary, Op, Reduce, Typed, Unary},
    plan::{Grouping, Instr, Kind, Plan},
};
use wgrad_cpu::{CpuBackend, reference};
use wgrad_nn::TrainerConfig;
use wgrad_tests::{
    gpu,
    steps::{Case, decoder, passes, recurrent, residual},
};
use wgrad_wgpu::WgpuBackend;

/// An error in a device's copy of the arithmetic.
type Fault = fn(&mut Instr, DType) -> bool;

/// A device whose kernels have a fault.
struct Faulty {
    inner: Box<dyn Backend>,
    fault: Fault,
}

impl Backend for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn claims(&self, _: &Op, _: &[Typed]) -> bool {
        // Fused kernels have no instructions to change.
        false
    }
    fn grouping(&self) -> Grouping {
        self.inner.grouping()
    }
    fn alloc(&mut self, data: &Data) -> Result<BufferId> {
        self.inner.alloc(data)
    }
    fn write(&mut self, buffer: BufferId, data: &Data) -> Result<()> {
        self.inner.write(buffer, data)
    }
    fn read(&mut self, buffer: BufferId) -> Result<Data> {
        self.inner.read(buffer)
    }
    fn keep(&mut self, buffers: &[BufferId]) -> Result<SnapshotId> {
        self.inner.keep(buffers)
    }
    fn restore(&mut self, snapshot: SnapshotId, buffers: &[BufferId]) -> Result<()> {
        self.inner.restore(snapshot, buffers)
    }
    fn forget(&mut self, snapshot: SnapshotId) {
        self.inner.forget(snapshot);
    }
    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> Result<ExecutableId> {
        let mut plan = plan.clone();
        for kernel in &mut plan.kernels {
            let body = match &mut kernel.kind {
                Kind::Loop(body) => body,
                Kind::MatMul(product) => &mut product.epilogue,
                Kind::Fill(_) | Kind::Op(_) => continue,
            };
            for at in 0..body.values.len() {
                // Comparisons are of what they read.
                let of =
                    body.values[at].instr.operands().last().map_or(body.values[at].dtype, |x| body.values[x].dtype);
                (self.fault)(&mut body.values[at].instr, of);
            }
        }
        self.inner.compile(&plan, states)
    }
    fn release(&mut self, executable: ExecutableId) {
        self.inner.release(executable);
    }
    fn wait(&mut self) -> Result<()> {
        self.inner.wait()
    }
    fn run(
        &mut self,
        executable: ExecutableId,
        inputs: &[&Data],
        run: u64,
        collective: &mut dyn Collective,
    ) -> Result<()> {
        self.inner.run(executable, inputs, run, collective)
    }
    fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        self.inner.deliveries()
    }
}

/// Another function in the place of one, of floats.
fn unary(instr: &mut Instr, from: Unary, to: Unary) -> bool {
    let is = matches!(instr, Instr::Unary(of, _) if *of == from);
    if let (true, Instr::Unary(of, _)) = (is, instr) {
        *of = to;
    }
    is
}

fn binary(instr: &mut Instr, dtype: DType, from: Binary, to: Binary) -> bool {
    let is = dtype.is_float() && matches!(instr, Instr::Binary(of, ..) if *of == from);
    if let (true, Instr::Binary(of, ..)) = (is, instr) {
        *of = to;
    }
    is
}

fn reduce(instr: &mut Instr, dtype: DType, from: Reduce, to: Reduce) -> bool {
    let is = dtype.is_float() && matches!(instr, Instr::Reduce(of, _) if *of == from);
    if let (true, Instr::Reduce(of, _)) = (is, instr) {
        *of = to;
    }
    is
}

/// Operands the other way round.
fn swapped(instr: &mut Instr, dtype: DType, of: Binary) -> bool {
    match instr {
        Instr::Binary(own, a, b) if *own == of && dtype.is_float() => {
            std::mem::swap(a, b);
            true
        }
        _ => false,
    }
}

/// Twenty faults: what they are called, the operation that is to blame, and what they do.
const FAULTS: [(&str, &str, Fault); 20] = [
    ("exp lacks 1", "exp", |i, _| unary(i, Unary::Exp, Unary::Expm1)),
    ("log has 1 more", "log", |i, _| unary(i, Unary::Log, Unary::Log1p)),
    ("tanh is sigmoid", "tanh", |i, _| unary(i, Unary::Tanh, Unary::Sigmoid)),
    ("sqrt is log1p", "sqrt", |i, _| unary(i, Unary::Sqrt, Unary::Log1p)),
    ("a reciprocal is a negative", "recip", |i, _| unary(i, Unary::Recip, Unary::Neg)),
    ("a negative is tanh", "neg", |i, _| unary(i, Unary::Neg, Unary::Tanh)),
    ("cos is sin", "cos", |i, _| unary(i, Unary::Cos, Unary::Sin)),
    ("a sum is a difference", "add", |i, t| binary(i, t, Binary::Add, Binary::Sub)),
    ("a sum is the larger", "add", |i, t| binary(i, t, Binary::Add, Binary::Max)),
    ("a difference is a sum", "sub", |i, t| binary(i, t, Binary::Sub, Binary::Add)),
    ("a difference the other way round", "sub", |i, t| swapped(i, t, Binary::Sub)),
    ("a product is a sum", "mul", |i, t| binary(i, t, Binary::Mul, Binary::Add)),
    ("a product is the larger", "mul", |i, t| binary(i, t, Binary::Mul, Binary::Max)),
    ("a quotient is a product", "div", |i, t| binary(i, t, Binary::Div, Binary::Mul)),
    ("a quotient the other way round", "div", |i, t| swapped(i, t, Binary::Div)),
    ("a comparison the other way round", "less", |i, t| swapped(i, t, Binary::Lt)),
    ("a comparison is equality", "less", |i, t| binary(i, t, Binary::Lt, Binary::Eq)),
    ("a sum over rows is their largest", "sum", |i, t| reduce(i, t, Reduce::Sum, Reduce::Max)),
    ("the largest of rows is their sum", "reduce_max", |i, t| reduce(i, t, Reduce::Max, Reduce::Sum)),
    ("a choice is the other", "select", |i, _| match i {
        Instr::Select(_, a, b) => {
            std::mem::swap(a, b);
            true
        }
        _ => false,
    }),
];

fn parting(case: &Case, backend: Box<dyn Backend>) -> Option<Parting> {
    let values = case.store.values().to_vec();
    let states = case.store.layout().states().zip(&values);
    let states = states.map(|((_, decl), value)| Array::new(decl.shape.clone(), value.clone())).collect();
    let (program, store) = case.program.stored().open(states).expect("it is a program");
    let mut session = Session::new(backend, store).expect("there is room");
    let inputs: Vec<(&str, &Array)> = case.inputs.iter().map(|(name, array)| (*name, array)).collect();
    let mut judge = |program: &Program, inputs: &[(&str, &Array)]| {
        let outcome = reference::run(program, &values, inputs)?;
        Ok(outcome.taps.into_iter().map(|(_, _, values)| values).collect())
    };
    session.parting(&program, &inputs, &mut judge).expect("it runs")
}

fn cases(config: &TrainerConfig) -> Vec<Case> {
    vec![decoder(config.clone()), recurrent(config.clone()), residual(config.clone())]
}

/// Those of a device with a fault that is blamed, at an operation of the right name.
fn blamed(config: &TrainerConfig, stride: usize, backend: impl Fn() -> Box<dyn Backend>) {
    let cases = cases(config);
    let mut missed = vec![];
    for (name, what, fault) in FAULTS.iter().step_by(stride) {
        let found: Vec<Parting> = cases
            .iter()
            .filter_map(|case| parting(case, Box::new(Faulty { inner: backend(), fault: *fault })))
            .collect();
        // A recurrent layer is one operation, with sums and functions of its own.
        let right = |parting: &Parting| {
            let name = parting.place.what.split(' ').next();
            parting.of == PartingOf::Operation && [Some(*what), Some("sequence")].contains(&name)
        };
        if found.is_empty() || !found.iter().all(right) {
            missed.push(format!("{name}: {}", found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(2).expect("threads"))
}

#[test]
fn twenty_faults_of_a_device_are_blamed_on_it() {
    blamed(&passes(), 1, cpu);
}

#[test]
fn faults_of_a_gpu_are_blamed_on_it() {
    let Some(gpu) = gpu() else { return };
    let config = TrainerConfig { check_loss: false, give_up: None, ..TrainerConfig::default() };
    blamed(&config, 9, || Box::new(WgpuBackend::on(gpu).expect("it is there")));
}

/// A case whose data are these.
fn with_data(mut case: Case, value: f32) -> Case {
    for (_, array) in &mut case.inputs {
        if let Data::F32(values) = array.data() {
            let mut values = values.clone();
            values[0] = value;
            *array = Array::new(array.shape().clone(), values);
        }
    }
    case
}

#[test]
fn models_that_break_are_not_blamed_on_a_device_that_is_right() {
    for value in [0.5, f32::NAN, f32::INFINITY, 1e20, 1e30, 3e38, -1e-38] {
        for case in cases(&passes()) {
            let case = with_data(case, value);
            let found = parting(&case, cpu());
            assert_eq!(found, None, "{} with {value}: {}", case.name, found.as_ref().expect("seen"));
        }
    }
}

/// A sum whose terms leave the range of the type, while it does not in f64.
#[test]
fn sums_that_overflow_on_their_way_are_no_fault() {
    let mut session = Session::new(cpu(), wgrad::Store::new()).expect("there is room");
    let step = session
        .record(|t| {
            let (x, w) = (t.input("x", [64, 512], DType::F32), t.input("w", [512, 64], DType::F32));
            t.tap("y", x.matmul(w));
            t.tap("sum", x.sum());
        })
        .expect("it compiles");
    // Half of each row is large, and the other half takes it back.
    let row = |i: usize| if i % 512 < 256 { 3e38f32 } else { -2.99e38 };
    let x = Array::new([64, 512], (0..64 * 512).map(row).collect::<Vec<_>>());
    let w = Array::new([512, 64], vec![1f32; 512 * 64]);
    let taps = session.run_now(&step, &[("x", &x), ("w", &w)]).expect("it runs");
    assert!(!taps.scalar("y").expect("tapped").is_finite(), "it overflows here");
    let mut judge = |program: &Program, inputs: &[(&str, &Array)]| {
        Ok(reference::run(program, &[], inputs)?.taps.into_iter().map(|(_, _, values)| values).collect())
    };
    assert_eq!(session.parting(&step, &[("x", &x), ("w", &w)], &mut judge).expect("it runs"), None);
    // But a wrong sum is one, of numbers as large.
    let fault: Fault = |i, t| reduce(i, t, Reduce::Sum, Reduce::Max);
    let mut session =
        Session::new(Box::new(Faulty { inner: cpu(), fault }), wgrad::Store::new()).expect("there is room");
    let step = session.record(|t| t.tap("sum", t.input("x", [1, 4], DType::F32).sum())).expect("it compiles");
    let x = Array::new([1, 4], vec![1e37f32, 1e37, -3e37, -2e37]);
    let found = session.parting(&step, &[("x", &x)], &mut judge).expect("it runs");
    assert!(found.is_some_and(|parting| parting.place.what.starts_with("sum")));
}

/// Zeros around an image, times what is not finite.
#[test]
fn what_a_padding_is_multiplied_by_is_no_fault() {
    let mut session = Session::new(cpu(), wgrad::Store::new()).expect("there is room");
    let step = session
        .record(|t| {
            let (x, w) = (t.input("x", [2, 3, 8, 8], DType::F32), t.input("w", [4, 3, 3, 3], DType::F32));
            let y = x.conv2d(w, Conv2d::same(3));
            let g = t.input("g", [2, 4, 8, 8], DType::F32);
            let grads = (y * g).sum().grad_wrt(&[x, w]);
            grads.into_iter().flatten().enumerate().for_each(|(at, grad)| t.tap(&format!("grad {at}"), grad));
        })
        .expect("it compiles");
    let of = |n: usize, odd: f32| (0..n).map(|i| if i == 0 { odd } else { (i as f32).sin() }).collect::<Vec<_>>();
    let (x, w) = (Array::new([2, 3, 8, 8], of(384, 1.0)), Array::new([4, 3, 3, 3], of(108, 1.0)));
    let mut judge = |program: &Program, inputs: &[(&str, &Array)]| {
        Ok(reference::run(program, &[], inputs)?.taps.into_iter().map(|(_, _, values)| values).collect())
    };
    for odd in [f32::INFINITY, f32::NAN] {
        let g = Array::new([2, 4, 8, 8], of(512, odd));
        let found = session.parting(&step, &[("x", &x), ("w", &w), ("g", &g)], &mut judge).expect("it runs");
        assert_eq!(found, None);
    }
}

#[test]
fn models_that_break_are_not_blamed_on_a_gpu_that_is_right() {
    let Some(gpu) = gpu() else { return };
    let config = TrainerConfig { check_loss: false, give_up: None, ..TrainerConfig::default() };
    for value in [0.5, f32::NAN] {
        for case in cases(&config) {
            let case = with_data(case, value);
            let found = parting(&case, Box::new(WgpuBackend::on(gpu).expect("it is there")));
            assert_eq!(found, None, "{} with {value}: {}", case.name, found.as_ref().expect("seen"));
        }
    }
}
