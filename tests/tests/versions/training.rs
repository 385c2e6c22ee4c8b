//! Programs as in the literature that step some parameters and read them again.

use super::*;

#[test]
fn what_was_read_before_another_networks_step_counts_as_what_is_read_after_it() {
    let mut gan = Gan::new();
    let (gp, dp) = (gan.gp.clone(), gan.dp.clone());
    let sgd = gan.sgd(&dp);
    let t = gan.tape();
    let before = gan.fake(&t);
    sgd.step(gan.d.forward(before.detach()).square().mean().grad(&dp));
    let early = gan.loss(before).grad(&gp);
    assert!(early.absent().is_empty());
    tap_all(&t, "early", &early);
    tap_all(&t, "late", &gan.loss(gan.fake(&t)).grad(&gp));
    // Without what is read after the step, the gradient is that of what was read before.
    tap_all(&t, "only early", &gan.d.forward(before).mean().grad(&gp));
    tap_all(&t, "only late", &gan.d.forward(gan.fake(&t)).mean().grad(&gp));
    let out = taps(gan.store, t.finish());
    same(&out, "early", "late");
    same(&out, "only early", "only late");
    assert!(out.tap("early g/weight").to_f64().iter().any(|g| g.abs() > 1e-3));
}

/// Radford et al. 2016, in the order of PyTorch's tutorial: the fakes are made once.
#[test]
fn a_gan_in_one_program_trains_as_in_two() {
    let parts = || {
        let mut gan = Gan::new();
        let (gp, dp) = (gan.gp.clone(), gan.dp.clone());
        let adams = [gan.adam("adam g", &gp), gan.adam("adam d", &dp)];
        (gan, adams)
    };
    let first = |gan: &Gan, d: &Adam, fake: Tensor<'_>| {
        d.step(gan.d.forward(fake.detach()).softplus().mean().grad(&gan.dp));
    };
    let second = |gan: &Gan, g: &Adam, fake: Tensor<'_>| {
        g.step((-gan.d.forward(fake)).softplus().mean().grad(&gan.gp));
    };
    let (gan, [g, d]) = parts();
    let t = gan.tape();
    let fake = gan.fake(&t);
    first(&gan, &d, fake);
    second(&gan, &g, fake);
    let together = parameters(gan.store, vec![t.finish()], 3);
    let (gan, [g, d]) = parts();
    let (a, b) = (gan.tape(), gan.tape());
    first(&gan, &d, gan.fake(&a));
    second(&gan, &g, gan.fake(&b));
    let start = parameters(Gan::new().store, vec![], 0);
    let apart = parameters(gan.store, vec![a.finish(), b.finish()], 3);
    assert!(start.iter().zip(&apart).all(|(a, b)| a != b), "everything is trained");
    compare("parameters", &together, &apart, Tolerance::F64).unwrap();
}

/// Gulrajani et al. 2017: several steps of the critic, each with a penalty of its slope, for one of the generator.
#[test]
fn critics_that_step_several_times_leave_the_generators_gradient_whole() {
    let critic = |gan: &Gan, adam: &Adam, fake: Tensor<'_>, k: usize| {
        let between = fake.detach() * (0.2 + 0.1 * k as f64);
        let slope = gan.d.forward(between).tanh().sum().grad_wrt(&[between])[0].expect("reached");
        let penalty = (slope.norm_axes(&[1]) - 1.0).square().mean();
        adam.step((gan.d.forward(fake.detach()).tanh().mean() + penalty).grad(&gan.dp));
    };
    let generator = |gan: &Gan, adam: &Adam, fake: Tensor<'_>| {
        let decay = t_norm(gan, fake.tape());
        adam.step((decay - gan.d.forward(fake).tanh().mean()).grad(&gan.gp));
    };
    let parts = || {
        let mut gan = Gan::new();
        let (gp, dp) = (gan.gp.clone(), gan.dp.clone());
        let adams = [gan.adam("adam g", &gp), gan.adam("adam d", &dp)];
        (gan, adams)
    };
    let (gan, [g, d]) = parts();
    let t = gan.tape();
    let fake = gan.fake(&t);
    (0..3).for_each(|k| critic(&gan, &d, fake, k));
    generator(&gan, &g, fake);
    let together = parameters(gan.store, vec![t.finish()], 2);
    let (gan, [g, d]) = parts();
    let mut programs: Vec<Program> = (0..3)
        .map(|k| {
            let t = gan.tape();
            critic(&gan, &d, gan.fake(&t), k);
            t.finish()
        })
        .collect();
    let t = gan.tape();
    generator(&gan, &g, gan.fake(&t));
    programs.push(t.finish());
    compare("parameters", &together, &parameters(gan.store, programs, 2), Tolerance::F64).unwrap();
}

fn t_norm<'t>(gan: &Gan, t: &'t Tape) -> Tensor<'t> {
    gan.gp.iter().map(|param| t.param(param).square().sum()).reduce(|a, b| a + b).expect("parameters") * 0.1
}

/// Finn et al. 2017: the gradient through an update of the parameters, which are read before it and after it.
#[test]
fn gradients_through_an_update_have_what_was_read_before_it() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let [inner, other] = [("inner", a), ("other", b)].map(|(name, param)| {
        let config = SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() };
        Sgd::new(&mut store, &only(param), config)
    });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let early = t.param(a).sin().sum() + t.param(b).tanh().sum();
    let grads = (t.param(a) * t.param(a) * t.param(a)).sum().grad(&only(a));
    let (adapted, _) = inner.update(&t.arenas(&all), &grads, &inner.current(&t, grads.flat()));
    let loss = early + t.with_params(&adapted, || (t.param(a).exp() + t.param(b).exp()).sum());
    tap_all(&t, "g", &loss.grad(&all));
    // After a step of the other parameter, of this one alone.
    other.step(t.param(b).square().sum().grad(&only(b)));
    tap_all(&t, "later", &(loss + t.param(a).cos().sum()).grad(&only(a)));
    let out = taps(store, t.finish());
    let through = |x: f64| x.cos() + (x - 0.3 * x * x).exp() * (1.0 - 0.6 * x);
    taps_of_a(&out, "g a", through);
    taps_of_a(&out, "later a", |x| through(x) - x.sin());
    let want = [2.0, 0.25].map(|x: f64| slope_of_tanh(x) + x.exp());
    compare("g b", &out.tap("g b").to_f64(), &want, Tolerance::F64).unwrap();
}

#[test]
fn windows_add_up_what_micro_batches_read_between_steps() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let window = Accumulator::<Unscaled>::new(&mut store, &only(a), "window", Weighting::Mean);
    let t = Tape::new(Arc::new(store.layout().clone()));
    let step = || sgd.step(t.param(b).square().sum().grad(&only(b)));
    let first = t.param(a).sin().sum();
    step();
    window.add((first + t.param(a).exp().sum()).grad(&only(a)));
    step();
    window.add((first + t.param(a).tanh().sum()).grad(&only(a)));
    tap_all(&t, "mean", &window.take(&t));
    let out = taps(store, t.finish());
    taps_of_a(&out, "mean a", |x| x.cos() + (x.exp() + slope_of_tanh(x)) / 2.0);
}

/// A step is no part of what is differentiated, whichever arena it steps.
#[test]
fn no_gradient_flows_through_a_step() {
    let record = |dtype: DType| {
        let mut store = Store::new();
        let a = store.param("a", &Array::new([2], vec![0.5f64, -1.5]));
        let b = store.param("b", &Array::new([2], vec![2.0f64, 0.25]).cast(dtype));
        let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.5.into(), ..SgdConfig::default() });
        let t = Tape::new(Arc::new(store.layout().clone()));
        let joint = || (t.param(a) * t.param(b).cast(DType::F64)).sin().sum();
        let early = joint();
        sgd.step(early.grad(&only(b)));
        let grads = (joint() * early).grad(&only(a));
        assert!(refused(|| (joint() * early).grad(&only(b))).contains("\"b\""));
        t.tap("g", grads.get(a).expect("reached"));
        taps(store, t.finish()).tap("g").to_f64()
    };
    compare("g", &record(DType::F32), &record(DType::F64), Tolerance(1e-6)).unwrap();
    let loss = |a: [f64; 2], b: [f64; 2]| a.iter().zip(b).map(|(a, b)| (a * b).sin()).sum::<f64>();
    let by_a = |a: [f64; 2], b: [f64; 2]| [0, 1].map(|i| (a[i] * b[i]).cos() * b[i]);
    let (a, b) = ([0.5f64, -1.5], [2.0f64, 0.25]);
    let stepped = [0, 1].map(|i| b[i] - 0.5 * (a[i] * b[i]).cos() * a[i]);
    let want = [0, 1].map(|i| by_a(a, b)[i] * loss(a, stepped) + by_a(a, stepped)[i] * loss(a, b));
    compare("g", &record(DType::F64), &want, Tolerance::F64).unwrap();
}

/// Foret et al. 2021: the gradient at values that are given and taken back, by assignment or for a while.
#[test]
fn sharpness_aware_steps_are_the_same_by_assignment_and_within_other_values() {
    let step = |assigned: bool| {
        let mut gan = Gan::new();
        let all = gan.store.params();
        let sgd = gan.sgd(&all);
        let t = gan.tape();
        let loss = || gan.d.forward(gan.fake(&t)).square().mean();
        let grads = loss().grad(&all);
        let (here, scale) = (t.arenas(&all), grads.norm().recip() * 0.3);
        let there = here.map(|arena, x| x + grads.flat().get(arena).expect("an arena") * scale);
        let give = |values: &Flat<'_>| values.parts().iter().for_each(|(arena, x)| t.assign(*arena, *x));
        if assigned {
            give(&there);
            let grads = loss().grad(&all);
            give(&here);
            sgd.step(grads);
        } else {
            sgd.step(t.with_params(&there, || loss().grad(&all)));
        }
        parameters(gan.store, vec![t.finish()], 2)
    };
    let (assigned, within) = (step(true), step(false));
    assert_eq!(assigned, within);
    assert_ne!(assigned, parameters(Gan::new().store, vec![], 0));
}

/// Tarvainen & Valpola 2017: what a teacher's average has seen of the student is no part of the student's gradient.
#[test]
fn an_average_of_the_parameters_hands_no_gradient_on() {
    let parts = || {
        let mut gan = Gan::new();
        let all = gan.store.params();
        let sgd = gan.sgd(&all);
        let ema = Ema::new(&mut gan.store, &all, EmaConfig { decay: 0.5, ..EmaConfig::default() });
        (gan, all, sgd, ema)
    };
    let record = |t: &Tape, (gan, all, sgd, ema): &(Gan, ParamSet, Sgd, Ema)| {
        let student = gan.d.forward(gan.fake(t));
        let teacher = t.with_params(&ema.averages(t), || gan.d.forward(gan.fake(t) + 0.1));
        sgd.step(((student - teacher).square().mean() + student.mean()).grad(all));
        ema.update(t, sgd);
    };
    let once = parts();
    let t = once.0.tape();
    (0..3).for_each(|_| record(&t, &once));
    let together = parameters(once.0.store, vec![t.finish()], 1);
    let each = parts();
    let programs = (0..3).map(|_| {
        let t = each.0.tape();
        record(&t, &each);
        t.finish()
    });
    let programs = programs.collect();
    compare("parameters", &together, &parameters(each.0.store, programs, 1), Tolerance::F64).unwrap();
}

/// A clip that is relative to the parameters takes them as the loss has read them.
#[test]
fn passes_that_look_at_parameters_see_what_the_loss_has_read() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let [first, second] = [("first", a), ("second", b)].map(|(name, param)| {
        let config = SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() };
        Sgd::new(&mut store, &only(param), config)
    });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let step = || {
        first.step(t.param(a).square().sum().grad(&only(a)));
        second.step(t.param(b).square().sum().grad(&only(b)));
    };
    // No value of the arena holds both: a is that of the first, b of the last.
    let old = t.param(a).sum();
    step();
    step();
    let grads = ((old + t.param(b).sum()) * 100.0).grad(&all);
    tap_all(&t, "clipped", &grads.agc(0.5));
    let out = taps(store, t.finish());
    // A vector is one unit, and all elements of its gradient are equal: half its norm, spread over two.
    for (name, read) in [("a", [0.5f64, -1.5]), ("b", [2.0 * 0.64, 0.25 * 0.64])] {
        let bound = read[0].hypot(read[1]) / 8f64.sqrt();
        compare(name, &out.tap(&format!("clipped {name}")).to_f64(), &[bound; 2], Tolerance::F64).unwrap();
    }
}

#[test]
fn a_loss_is_differentiated_for_two_sets_and_both_optimizers_may_share_parameters() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let mut sgd = |name: &str, params: &ParamSet| {
        Sgd::new(&mut store, params, SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() })
    };
    let (first, second) = (sgd("first", &all), sgd("second", &only(b)));
    let t = Tape::new(Arc::new(store.layout().clone()));
    let loss = (t.param(a) * t.param(b)).sum();
    let (g, h) = (loss.grad(&all), loss.grad(&only(b)));
    first.step(g);
    second.step(h);
    let have = parameters(store, vec![t.finish()], 1);
    let want = [0.5 - 0.1 * 2.0, -1.5 - 0.1 * 0.25, 2.0 - 0.2 * 0.5, 0.25 + 0.2 * 1.5];
    compare("parameters", &have, &want, Tolerance::F64).unwrap();
}
