//! Files that are whole or absent: written to `NAME.part`, hashed on the way, synced, renamed.

mod shard;
mod small;

pub use shard::ShardWriter;
pub use small::{free_space, remove_tree, sync_dir, write_file};
