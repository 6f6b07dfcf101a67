//! The README and the guide, compiled as documentation tests so that their code cannot rot. Built
//! for these tests only: the pages lie outside of the package.

#[doc = include_str!("../../README.md")]
mod readme {}

#[doc = include_str!("../../docs/exactly-once.md")]
mod exactly_once {}

#[doc = include_str!("../../docs/idempotent-commands.md")]
mod idempotent_commands {}

#[doc = include_str!("../../docs/ordering.md")]
mod ordering {}

#[doc = include_str!("../../docs/operating.md")]
mod operating {}

#[doc = include_str!("../../docs/upgrading.md")]
mod upgrading {}

#[doc = include_str!("../../docs/bad-input.md")]
mod bad_input {}

#[doc = include_str!("../../docs/what-counts-as-what.md")]
mod what_counts_as_what {}
