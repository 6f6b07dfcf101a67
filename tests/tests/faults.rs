//! Faults that broke other systems, each as a test.

mod faults {
    mod cancel;
    mod connections;
    mod dedup;
    mod hostile;
    mod leases;
    mod loss;
    mod processes;
    mod relay;
    mod support;
    mod table_transport;
}
