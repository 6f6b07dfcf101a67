//! How each kind of bad input ends, and that the worker goes on afterwards. The table for users is
//! `docs/bad-input.md`; each of its rows has a test here.

mod bad_input {
    mod abort;
    mod deliveries;
    mod handlers;
    mod settings;
    mod support;
}
