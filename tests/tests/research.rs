//! Programs as a user writes them: each learns what it is for, with the same bits each time, and is at most twice as long
//! as the same program in PyTorch.

use wgrad::{Array, DType, PassKind, Session, Store, testing::Gradcheck};
use wgrad_cpu::CpuBackend;
use wgrad_nn::Builder;
use wgrad_tests::research::{
    ddpm::Ddpm,
    own_cell::{AddingRun, MinimalGatedUnit},
    pinn::Pinn,
    sam::FlatSpirals,
    wgan_gp::WganGp,
    zclip::Spikes,
};

/// The mean of some numbers.
fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// The variance of the light of an image around its centre, along both axes together.
fn variance(image: &[f64]) -> f64 {
    let total: f64 = image.iter().sum();
    let moment = |of: fn(f64, f64) -> f64| {
        let at = |i: usize| of((i / 16) as f64, (i % 16) as f64);
        image.iter().enumerate().map(|(i, light)| light * at(i)).sum::<f64>() / total
    };
    moment(|y, x| y * y + x * x) - moment(|y, _| y).powi(2) - moment(|_, x| x).powi(2)
}

#[test]
fn a_wgan_draws_blobs() {
    let mut gan = WganGp::new(16, 1).expect("it compiles");
    let of_each = |images: &Array, of: fn(&[f64]) -> f64| mean(images.to_f64().chunks(16 * 16).map(of));
    let light = |images: &Array| of_each(images, |image| image.iter().sum());
    let spread = |images: &Array| of_each(images, variance);
    let before = gan.sample(64).expect("it runs");
    for _ in 0..75 {
        assert!(gan.step().expect("it runs").is_finite());
    }
    let after = gan.sample(64).expect("it runs");
    // The light of a blob is 8 pi, and its variance 4 along each axis; that of an even image is 21.
    assert!(light(&before) > 100.0 && spread(&before) > 35.0, "{} {}", light(&before), spread(&before));
    assert!((light(&after) - 25.0).abs() < 8.0, "{}", light(&after));
    assert!((5.0..20.0).contains(&spread(&after)), "{}", spread(&after));
}

#[test]
fn a_pinn_finds_the_wave() {
    let mut pinn = Pinn::new(128, 1).expect("it compiles");
    let before = pinn.error().expect("it runs");
    for _ in 0..400 {
        pinn.step().expect("it runs");
    }
    let after = pinn.error().expect("it runs");
    assert!(before > 0.3 && after < 0.05, "{before} {after}");
}

#[test]
fn a_ddpm_draws_points_of_both_clusters() {
    let mut ddpm = Ddpm::new(256, 1).expect("it compiles");
    for _ in 0..500 {
        ddpm.step().expect("it runs");
    }
    let points = ddpm.sample().expect("it runs").to_f64();
    let moment = |of: fn(f64, f64) -> f64| mean(points.chunks(2).map(|point| of(point[0], point[1])));
    let (x, y) = (moment(|x, _| x), moment(|_, y| y));
    let (xx, yy, xy) = (moment(|x, _| x * x), moment(|_, y| y * y), moment(|x, y| x * y));
    let near = moment(|x, y| f64::from((x.abs() - 1.5).hypot(y * x.signum() - 0.5) < 0.6));
    assert!(x.abs() < 0.25 && y.abs() < 0.15, "{x} {y}");
    assert!((xx - 2.29).abs() < 0.3 && (yy - 0.29).abs() < 0.1 && (xy - 0.75).abs() < 0.15, "{xx} {yy} {xy}");
    assert!(near > 0.9, "{near}");
}

#[test]
fn sam_ends_where_the_loss_is_flatter() {
    let [(plain_loss, plain), (flat_loss, flat)] = [0.0, 0.1].map(|rho| {
        let mut run = FlatSpirals::new(128, rho, 1).expect("it compiles");
        let losses: Vec<f64> = (0..400).map(|_| run.step().expect("it runs")).collect();
        (losses[399], run.sharpness().expect("it runs"))
    });
    assert!(plain_loss < 0.3 && flat_loss < 0.3, "{plain_loss} {flat_loss}");
    assert!(flat < plain / 2.0, "{flat} {plain}");
}

#[test]
fn zclip_clips_what_is_injected() {
    let mut run = Spikes::new(64, 1).expect("it compiles");
    let passes: Vec<_> = run.step.passes().iter().map(|pass| (pass.name, pass.kind)).collect();
    assert_eq!(passes, [("zclip", PassKind::Own), ("sgd", PassKind::Step)]);
    let mut step = |factor: f32| {
        let taps = run.step(factor).expect("it runs");
        ["loss", "zclip/norm", "zclip/clipped"].map(|name| taps.scalar(name).expect("tapped"))
    };
    let sound: Vec<[f64; 3]> = (0..50).map(|_| step(1.0)).collect();
    let [_, norm, clipped] = step(1000.0);
    let largest = sound[30..].iter().map(|of| of[1]).fold(0.0, f64::max);
    assert!(norm > 100.0 * largest, "{norm} {largest}");
    assert!(clipped < 2.0 * largest, "{clipped} {largest}");
    let [spoiled, ..] = step(f32::INFINITY);
    assert!(!spoiled.is_finite());
    let after = mean((0..20).map(|_| step(1.0)[0]));
    let before = mean(sound[30..].iter().map(|of| of[0]));
    assert!(after < 1.1 * before, "{after} {before}");
}

#[test]
fn a_cell_of_ones_own_learns_to_add() {
    let mut run = AddingRun::new(10, 64, 1).expect("it compiles");
    let losses: Vec<f64> = (0..250).map(|_| run.step().expect("it runs")).collect();
    // A model that always says 1 has a loss of 1/6.
    let last = mean(losses[230..].iter().copied());
    assert!(last < 0.02, "{last}");
}

#[test]
fn a_cell_of_ones_own_has_the_gradients_of_its_formula() {
    let mut store = Store::new();
    let cell = MinimalGatedUnit::new(Builder::new(&mut store, 1).with_dtype(DType::F64), 2, 3);
    let (params, cpu) = (store.params(), CpuBackend::new(1).expect("a thread"));
    let mut session = Session::new(Box::new(cpu), store).expect("there is room");
    let x = Array::new([4, 2, 2], (0..16).map(|i| (f64::from(i) * 0.7).sin()).collect::<Vec<f64>>());
    let checked = Gradcheck::new().second_order().check_params(&mut session, &params, &[x], |_, x| cell.last(x[0]));
    assert!(checked.expect("the gradients are right").compared > 50);
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let run = |threads| {
        let mut all = vec![];
        let (mut gan, mut pinn) =
            (WganGp::new(4, threads).expect("compiles"), Pinn::new(16, threads).expect("compiles"));
        let mut ddpm = Ddpm::new(16, threads).expect("compiles");
        let mut sam = FlatSpirals::new(16, 0.05, threads).expect("compiles");
        let (mut zclip, mut adding) = (Spikes::new(8, threads).expect("compiles"), AddingRun::new(4, 8, threads));
        for _ in 0..3 {
            all.extend([gan.step(), pinn.step(), ddpm.step(), sam.step()].map(|loss| loss.expect("it runs")));
            all.push(zclip.step(1.0).expect("it runs").scalar("loss").expect("tapped"));
            all.push(adding.as_mut().expect("compiles").step().expect("it runs"));
        }
        all
    };
    let one = run(1);
    assert!(one.iter().all(|loss| loss.is_finite()), "{one:?}");
    assert_eq!(one, run(2));
}

/// The number of lines of code: neither blank nor comments.
fn lines(text: &str, comment: &str) -> usize {
    let code = |line: &&str| !line.is_empty() && !line.starts_with(comment) && !line.starts_with("\"\"\"");
    text.lines().map(str::trim).filter(code).count()
}

#[test]
fn programs_are_at_most_twice_as_long_as_in_pytorch() {
    macro_rules! both {
        ($($name:literal),*) => { [$((
            $name,
            include_str!(concat!("../programs/", $name, ".rs")),
            include_str!(concat!("../programs/", $name, ".py")),
        )),*] };
    }
    for (name, own, peer) in both!("wgan_gp", "pinn", "ddpm", "sam", "zclip", "own_cell") {
        let (own, peer) = (lines(own, "//"), lines(peer, "#"));
        assert!(own <= 2 * peer, "{name}: {own} lines, {peer} in PyTorch");
    }
}
