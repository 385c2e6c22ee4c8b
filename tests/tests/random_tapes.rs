//! Random tapes: each property of the table holds of some. `cargo xtask fuzz` tries more.

use wgrad_tests::{hold, properties};

/// One test for each property.
macro_rules! properties {
    ($($name:ident)*) => {
        $(#[test] fn $name() { hold(stringify!($name)); })*

        #[test]
        fn every_property_is_tested() {
            let names: Vec<&str> = properties().iter().map(|property| property.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

properties! {
    plans_of_short_tapes_are_right
    plans_mean_what_the_program_means
    plans_are_sound
    the_cpu_runs_any_plan_in_f64
    the_cpu_runs_any_plan_in_f32
    the_cpu_runs_any_plan_with_f16
    cpu_in_f64_agrees_with_the_reference
    cpu_in_mixed_types_agrees_with_the_reference
    cpu_with_f16_agrees_with_the_reference
    cpu_in_f32_agrees_with_the_reference
    fused_equals_unfused
    threads_and_reruns_change_no_bit
    gradients_and_curvature_agree_with_finite_differences
    rounding_to_f32_passes_gradients_through
    rounding_to_f16_passes_gradients_through
    gradients_across_steps_are_whole_or_refused
    plans_of_square_tapes_are_right
    the_cpu_runs_square_tapes
    plans_of_segmented_tapes_are_right
    the_cpu_runs_segmented_tapes
    a_recipe_without_any_of_its_steps_records
    a_simplified_tape_gives_the_same_bits
    what_is_not_finite_skips_the_step
    the_gpu_runs_short_tapes
    the_gpu_runs_any_plan_in_f32
    the_gpu_agrees_with_the_reference
    the_gpu_runs_any_plan_with_f16
    the_gpu_repeats_its_bits
    merged_kernels_have_the_same_bits
}
