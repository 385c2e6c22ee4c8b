//! Normalisation of channels by the batch and by themselves.

use crate::{assert_close, declared, eval, numbers};
use wgrad::{Array, Shape};
use wgrad_nn::{BatchNorm, BatchNorm1d, InstanceNorm};

/// Each row, less its mean and divided by its deviation; a row is what a norm takes together.
fn standardized(rows: &[f64], len: usize) -> Vec<f64> {
    let of = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / len as f64;
        let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len as f64;
        row.iter().map(|v| (v - mean) / (var + 1e-5).sqrt()).collect::<Vec<_>>()
    };
    rows.chunks(len).flat_map(of).collect()
}

fn shaped(shape: &[usize]) -> Array {
    numbers(Shape::from(shape), 4)
}

#[test]
fn a_batch_norm_of_sequences_is_that_of_images_of_one_row() {
    for (shape, image) in [(&[6, 2][..], [6, 2, 1, 1]), (&[3, 2, 5], [3, 2, 1, 5])] {
        for training in [true, false] {
            let x = shaped(shape);
            let (norm, mut session) = declared(|b| BatchNorm1d::new(b, 2).with_momentum(0.3));
            let have = eval(&mut session, &x, |x| norm.forward(x, training));
            let running = session.read(norm.norm.running).expect("readable");
            let (norm, mut session) = declared(|b| BatchNorm::new(b, 2).with_momentum(0.3));
            let want = eval(&mut session, &x, |x| norm.forward(x.reshape(image), training));
            assert_eq!(have.to_f64(), want.to_f64());
            assert_eq!(**have.shape(), *shape);
            assert_eq!(running, session.read(norm.running).expect("readable"));
        }
    }
}

#[test]
fn an_instance_norm_standardizes_each_channel_of_each_sample() {
    for shape in [&[2, 3, 5][..], &[2, 3, 2, 4], &[1, 3, 2, 2, 2]] {
        let x = shaped(shape);
        let len = shape[2..].iter().product();
        let want = standardized(&x.to_f64(), len);
        let (norm, mut session) = declared(|_| InstanceNorm::new(3));
        assert_eq!(session.layout().params().count(), 0);
        let have = eval(&mut session, &x, |x| norm.forward(x));
        assert_eq!(**have.shape(), *shape);
        assert_close(&have.to_f64(), &want);

        let (norm, mut session) = declared(|b| InstanceNorm::affine(b, 3));
        let (gain, shift) = ([0.5, -1.0, 2.0], [0.1, 0.2, -0.3]);
        for (param, values) in [(norm.weight, gain), (norm.bias, shift)] {
            session.write_param(param.expect("affine"), &Array::new([3], values.to_vec())).expect("of its shape");
        }
        let channel = |i: usize| i / len % 3;
        let want: Vec<f64> = want.iter().enumerate().map(|(i, v)| v * gain[channel(i)] + shift[channel(i)]).collect();
        assert_close(&eval(&mut session, &x, |x| norm.forward(x)).to_f64(), &want);
    }
}
