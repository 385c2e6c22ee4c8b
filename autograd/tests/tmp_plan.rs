//! tmp
use wgrad::*;
use wgrad::plan::Plan;
#[test]
fn stack() {
    for depth in [2, 6, 12, 24, 48] {
        let mut store = Store::new();
        let ps: Vec<_> = (0..depth).map(|i| (store.param(&format!("w{i}"), &Array::new([64,64], vec![0.1f32; 4096])), store.param(&format!("b{i}"), &Array::new([64], vec![0.1f32; 64])))).collect();
        let layout = std::sync::Arc::new(store.layout().clone());
        let record = || {
            let t = Tape::new(layout.clone());
            let x = t.input("x", [32,64], DType::F32);
            let out = ps.iter().fold(x, |x, (w,b)| {
                let h = x.matmul_t(t.param(*w)) + t.param(*b);
                let c = h - h.mean_axes(&[1]).reshape([32,1]);
                let d = (h.var_axes(&[1]).reshape([32,1]) + 1e-5).sqrt();
                (c/d).tanh() + x
            });
            let loss = out.mse(t.input("y", [32,64], DType::F32));
            t.tap("loss", loss);
            let g = loss.grad(&store.params()).clip_by_global_norm(1.0);
            for (id, g) in g.flat().parts() { t.assign(*id, t.state(*id) - *g * 0.1); }
            t.finish()
        };
        let mut best = (f64::MAX, f64::MAX, f64::MAX);
        let mut k = 0; let mut n = 0;
        for _ in 0..20 {
            let a = std::time::Instant::now();
            let p = record();
            let b = std::time::Instant::now();
            let l = p.lowered(true, |_| true);
            let c = std::time::Instant::now();
            let plan = Plan::new(&l);
            let e = c.elapsed().as_secs_f64();
            k = plan.kernels.len(); n = p.nodes().len();
            best = (best.0.min((b-a).as_secs_f64()), best.1.min((c-b).as_secs_f64()), best.2.min(e));
            if depth == 2 && best.0 > 1e6 { println!("{}", plan.describe(&l)); }
        }
        println!("{depth}: nodes {n} kernels {k} record {:.2} ms lower {:.2} ms plan {:.2} ms", best.0*1e3, best.1*1e3, best.2*1e3);
        if depth == 2 { let p = record(); let l = p.lowered(true, |_| true); println!("{}", Plan::new(&l).describe(&l)); }
    }
}
