//! Keeping crates that only contain handlers in the program.

/// Names crates whose handlers belong to this program.
///
/// The linker drops a crate that nothing names, and its handlers with it, without a word. Write
/// this once in `main.rs`, with every crate that has handlers; a package's own library counts,
/// since `main.rs` is a crate of its own.
///
/// ```
/// // In a service: `whizbang::link!(orders, billing);`
/// whizbang::link!(whizbang);
/// ```
///
/// A test in `tests/` needs it as well, or names the handlers with `.register::<name>()`.
#[macro_export]
macro_rules! link {
    ($($name:ident),+ $(,)?) => {
        $(
            #[allow(unused_imports)]
            use ::$name as _;
        )+
    };
}
