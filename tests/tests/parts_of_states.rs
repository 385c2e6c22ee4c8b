//! Parts of states that travel alone: parameters to the host and back, at the cost of their own elements.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};
use wgrad::{
    Array, Backend, Collective, DType, Data, Error, Param, Result, Session, Store,
    backend::{BufferId, Delivery, ExecutableId, SnapshotId},
    plan::Plan,
};
use wgrad_cpu::CpuBackend;
use wgrad_tests::{gpu, gpus_of_f16, same_bits};
use wgrad_wgpu::WgpuBackend;

/// The devices that tests run on.
fn devices() -> Vec<Box<dyn Backend>> {
    let cpu = Box::new(CpuBackend::poisoned(1).expect("the threads start"));
    let gpu = gpu().map(|gpu| Box::new(WgpuBackend::on(gpu).expect("the device is there").poisoned()) as _);
    std::iter::once(cpu as Box<dyn Backend>).chain(gpu).collect()
}

/// Numbers that are different in every element and every round.
fn elements(dtype: DType, len: usize, round: usize) -> Data {
    let value = |i: usize| match dtype {
        DType::Bool => (i * 7 + round).is_multiple_of(3) as u8 as f64,
        DType::U32 => (i * 31 + round * 1009) as f64,
        _ => (i as f64 * 17.0 + round as f64 * 5.0) % 1021.0 - 400.0,
    };
    Data::from_f64(dtype, &(0..len).map(value).collect::<Vec<f64>>())
}

/// Overwrites part of an array as a whole.
fn overwritten(whole: &Data, start: usize, part: &Data) -> Data {
    let mut all = whole.to_f64();
    all[start..][..part.len()].copy_from_slice(&part.to_f64());
    Data::from_f64(whole.dtype(), &all)
}

/// Stretches of a buffer, short and long, that begin and end anywhere.
fn stretches(len: usize) -> Vec<(usize, usize)> {
    let all =
        [(0, len), (0, 0), (len, 0), (0, 1), (len / 2, 1), (len - 1, 1), (1, len - 1), (0, len - 1), (3, 5), (4, 6)];
    all.into_iter().filter(|(start, part)| start + part <= len).collect()
}

/// Parts of small and large buffers of every type, against the same on the host, with neighbours that must stay.
#[test]
fn parts_of_buffers_are_written_and_read_alone() {
    let of_f16 =
        gpus_of_f16().into_iter().map(|gpu| Box::new(WgpuBackend::on(gpu).expect("there")) as Box<dyn Backend>);
    for mut device in devices().into_iter().chain(of_f16) {
        let name = device.name();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::U32, DType::I32, DType::Bool] {
            if dtype == DType::F64 && name.starts_with("gpu") {
                continue;
            }
            for len in [7, 1024, 1025, 3001] {
                let [before, mut want, after] = [0, 1, 2].map(|round| elements(dtype, len, round));
                let [left, buffer, right] = [&before, &want, &after].map(|data| device.alloc(data).expect("room"));
                for (round, (start, part)) in stretches(len).into_iter().enumerate() {
                    let data = elements(dtype, part, round + 3);
                    device.write_part(buffer, start, &data).expect("writes");
                    want = overwritten(&want, start, &data);
                    let what = format!("{name}: {dtype}[{len}], {part} from {start}");
                    assert_eq!(device.read_part(buffer, start..start + part).expect("reads"), data, "{what}");
                    assert_eq!(device.read(buffer).expect("reads"), want, "{what}");
                }
                assert_eq!(device.read(left).expect("reads"), before);
                assert_eq!(device.read(right).expect("reads"), after);
            }
        }
    }
}

/// The CPU, counting the elements that travel to it and from it.
struct Weighed(CpuBackend, Arc<Mutex<Vec<usize>>>);

impl Weighed {
    fn note(&self, elements: usize) {
        self.1.lock().expect("not poisoned").push(elements);
    }
}

impl Backend for Weighed {
    fn name(&self) -> String {
        self.0.name()
    }
    fn alloc(&mut self, data: &Data) -> Result<BufferId> {
        self.0.alloc(data)
    }
    fn write(&mut self, buffer: BufferId, data: &Data) -> Result<()> {
        self.note(data.len());
        self.0.write(buffer, data)
    }
    fn read(&mut self, buffer: BufferId) -> Result<Data> {
        let data = self.0.read(buffer)?;
        self.note(data.len());
        Ok(data)
    }
    fn write_part(&mut self, buffer: BufferId, start: usize, data: &Data) -> Result<()> {
        self.note(data.len());
        self.0.write_part(buffer, start, data)
    }
    fn read_part(&mut self, buffer: BufferId, range: Range<usize>) -> Result<Data> {
        self.note(range.len());
        self.0.read_part(buffer, range)
    }
    fn keep(&mut self, buffers: &[BufferId]) -> Result<SnapshotId> {
        self.0.keep(buffers)
    }
    fn restore(&mut self, snapshot: SnapshotId, buffers: &[BufferId]) -> Result<()> {
        self.0.restore(snapshot, buffers)
    }
    fn forget(&mut self, snapshot: SnapshotId) {
        self.0.forget(snapshot);
    }
    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> Result<ExecutableId> {
        self.0.compile(plan, states)
    }
    fn release(&mut self, executable: ExecutableId) {
        self.0.release(executable);
    }
    fn wait(&mut self) -> Result<()> {
        self.0.wait()
    }
    fn run(&mut self, id: ExecutableId, inputs: &[&Data], run: u64, collective: &mut dyn Collective) -> Result<()> {
        self.0.run(id, inputs, run, collective)
    }
    fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        self.0.deliveries()
    }
}

/// Three parameters of one arena, of which the second is not aligned.
fn three() -> (Store, [Param; 3]) {
    let mut store = Store::new();
    let params = [("a", 200), ("b", 3), ("c", 1500)]
        .map(|(path, len)| store.param(path, &Array::new([len], elements(DType::F32, len, len))));
    (store, params)
}

#[test]
fn a_parameter_travels_alone() {
    let (store, [_, b, c]) = three();
    let moved = Arc::new(Mutex::new(vec![]));
    let device = Weighed(CpuBackend::new(1).expect("threads"), moved.clone());
    let mut session = Session::new(Box::new(device), store).expect("session");
    session.read_param(c).expect("reads");
    session.write_param(b, &Array::zeros([3], DType::F32)).expect("writes");
    session.read_param(b).expect("reads");
    assert_eq!(*moved.lock().expect("not poisoned"), [1500, 3, 3]);
}

/// Writing a parameter changes it for the runs after, and nothing else, padding included.
#[test]
fn a_written_parameter_is_the_runs_after() {
    for device in devices() {
        let (store, params @ [a, b, c]) = three();
        let arena = store.layout().param(a).arena;
        let mut session = Session::new(device, store).expect("session");
        let step = session.record(|t| {
            t.tap("sum", t.param(b).sum());
            t.assign(arena, t.state(arena) * 2);
        });
        let step = step.expect("compiles");
        let before = params.map(|param| session.read_param(param).expect("reads"));
        session.run(&step, &[]).expect("runs");
        session.write_param(b, &Array::new([3], vec![1.0f32, 2.0, 4.0])).expect("writes");
        let taps = session.run_now(&step, &[]).expect("runs");
        assert_eq!(taps.scalar("sum"), Some(7.0));
        let first = session.taps().expect("delivered").remove(0).scalar("sum");
        assert_eq!(first, Some(before[1].to_f64().iter().sum()));
        let four = |array: &Array| {
            Array::new(array.shape(), array.to_f64().iter().map(|x| *x as f32 * 4.0).collect::<Vec<_>>())
        };
        for (param, before) in [(a, &before[0]), (c, &before[2])] {
            assert!(same_bits(&session.read_param(param).expect("reads"), &four(before)));
        }
        assert_eq!(session.read_param(b).expect("reads").to_f64(), [2.0, 4.0, 8.0]);
        let whole = session.read(arena).expect("reads").to_f64();
        let layout = session.layout();
        let segments = layout.segments(arena);
        let inside = |i: usize| segments.ranges.iter().any(|(start, len)| (*start..start + len).contains(&i));
        assert!((0..whole.len()).filter(|i| !inside(*i)).all(|i| whole[i] == 0.0), "the padding is zero");
        let wrong = session.write_param(b, &Array::zeros([4], DType::F32)).expect_err("refused");
        assert!(matches!(&wrong, Error::Mismatch { what, .. } if what == "parameter \"b\""), "{wrong}");
        let wrong = session.write_param(b, &Array::zeros([3], DType::F64)).expect_err("refused");
        assert!(matches!(wrong, Error::Mismatch { .. }), "{wrong}");
        assert_eq!(session.read_param(b).expect("reads").to_f64(), [2.0, 4.0, 8.0]);
    }
}
