//! Faults that broke other systems, each as a test.

mod faults {
    mod connections;
    mod dedup;
    mod leases;
    mod processes;
    mod relay;
    mod support;
    mod table_transport;
}
