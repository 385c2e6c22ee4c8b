//! tmp
use wgrad::*;
use wgrad::plan::Plan;
fn show(name: &str, f: impl FnOnce(&Tape)) {
    let t = Tape::default();
    f(&t);
    let p = t.finish();
    println!("== {name}\n{}", p);
    println!("{}", Plan::new(&p).describe(&p));
}
fn ln<'t>(x: Tensor<'t>, g: Tensor<'t>, b: Tensor<'t>) -> Tensor<'t> {
    let n = x.shape()[1] as f64;
    let mean = x.sum_axes(&[1]).reshape([x.shape()[0],1]) * (1.0/n);
    let d = x - mean;
    let var = (d*d).sum_axes(&[1]).reshape([x.shape()[0],1]) * (1.0/n);
    let r = (var + 1e-5).sqrt().recip();
    d * r * g + b
}
#[test]
fn plans() {
    show("softmax", |t| { let x = t.input("x", [4096,1024], DType::F32); let y = x.softmax(1); t.tap("y", y); });
    show("ln", |t| {
        let x = t.input("x", [4096,1024], DType::F32);
        let g = t.input("g", [1024], DType::F32);
        let b = t.input("b", [1024], DType::F32);
        let dy = t.input("dy", [4096,1024], DType::F32);
        let y = ln(x,g,b);
        let l = (y*dy).sum();
        let gs = l.grad_wrt(&[x,g,b]);
        t.tap("y", y);
        for g in gs { t.tap("g", g.unwrap()); }
    });
    show("mlp", |t| {
        let x = t.input("x", [64,32], DType::F32);
        let w = t.input("w", [16,32], DType::F32);
        let b = t.input("b", [16], DType::F32);
        let y = t.input("y", [64], DType::U32);
        let l = (x.matmul_t(w)+b).tanh().cross_entropy(y);
        let gs = l.grad_wrt(&[w,b]);
        t.tap("loss", l);
        let n: Tensor = gs.iter().map(|g| { let g = g.unwrap(); (g*g).sum() }).reduce(|a,b| a+b).unwrap();
        let s = n.sqrt();
        for g in gs { t.tap("g", g.unwrap() * (1.0 / s)); }
    });
}
