//! Nothing to build; a build script is what the `links` key asks for.

fn main() {}
