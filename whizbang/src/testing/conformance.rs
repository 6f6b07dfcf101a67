//! The checks that every store must pass.
