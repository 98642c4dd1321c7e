//! Gathering into maps and sets.

/// What `collect` makes, by adding one item after the other. For a map, `collect` sorts a copy first, by code that is
/// compiled again for each type of key: some 8 KB of the module each, where few items come.
pub fn gather<T, I>(items: I) -> T
where
    I: IntoIterator,
    T: Default + Extend<I::Item>,
{
    let mut all = T::default();
    all.extend(items);
    all
}
