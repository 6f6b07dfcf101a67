//! Faults that broke other systems, each as a test.

mod faults {
    mod dedup;
    mod leases;
    mod relay;
    mod support;
}
