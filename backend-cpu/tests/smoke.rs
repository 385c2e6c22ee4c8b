//! One small program end to end: recorded, differentiated through clip and SGD, run by plan and by reference.

use approx::{abs_diff_eq, assert_abs_diff_eq};
use wgrad::{Array, DType, Flat, Session, Store, Tape, Tensor};
use wgrad_cpu::{CpuBackend, reference};

#[test]
fn gradient_through_clip_and_sgd() {
    let mut store = Store::new();
    let values = [0.3, -0.5, 0.8, 0.1, 0.9, -0.7];
    let w1 = store.param("w1", &Array::new([2, 3], values.to_vec()));
    let w2 = store.param("w2", &Array::new([3, 1], vec![1.1, -0.4, 0.6]));
    let max_norm = store.state("max_norm", &Array::scalar(0.05));
    let params = store.params();
    let x = Array::new([4, 2], vec![1., 2., -0.5, 0.3, 0.7, -1.2, 0.2, 0.9]);
    fn loss<'t>(x: Tensor<'t>, w1: wgrad::Param, w2: wgrad::Param) -> Tensor<'t> {
        let t = x.tape();
        let h = x.matmul(t.param(w1)).tanh();
        let y = h.matmul(t.param(w2));
        (y * y * y).sum()
    }
    let record = |t: &Tape| {
        let (c, x) = (t.state(max_norm), t.input("x", [4, 2], DType::F64));
        let g = loss(x, w1, w2).grad(&params).clip_by_global_norm(c);
        let new = Flat::new(g.flat().parts().iter().map(|&(a, g)| (a, t.state(a) - g * 0.1)).collect());
        let after = t.with_params(&new, || loss(x, w1, w2));
        t.tap("loss", after);
        t.tap("d_max_norm", after.grad_wrt(&[c])[0].expect("reached"));
    };
    let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
    record(&tape);
    let program = tape.finish();
    let data = store.values().to_vec();
    let eval = |c: f64| {
        let mut data = data.clone();
        data[max_norm.index()] = vec![c].into();
        reference::run(&program, &data, &[("x", &x)]).expect("runs").taps
    };
    let tapped = |taps: &[(String, wgrad::Shape, Vec<f64>)], name: &str| {
        taps.iter().find(|(n, ..)| n == name).expect("tapped").2[0]
    };
    let numeric = (tapped(&eval(0.05 + 1e-6), "loss") - tapped(&eval(0.05 - 1e-6), "loss")) / 2e-6;
    let analytic = tapped(&eval(0.05), "d_max_norm");
    assert_abs_diff_eq!(numeric, analytic, epsilon = 1e-7);

    let mut session = Session::new(Box::new(CpuBackend::poisoned(2).expect("threads")), store).expect("session");
    let step = session.record(record).expect("compiles");
    session.run(&step, &[("x", &x)]).expect("runs");
    let taps = session.taps().expect("taps");
    let planned = taps[0].scalar("d_max_norm").expect("tapped");
    assert!(abs_diff_eq!(planned, analytic, epsilon = 1e-12), "{planned} {analytic}\n{}", *step);
}
