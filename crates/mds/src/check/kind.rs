//! Kinds of problems.

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $name:literal,)*) => {
        /// Kind of a problem. Its name is for programs that read the report, and for the manual.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// A name of an inode that does not exist, or in a directory that does not exist.
    DanglingName = "dangling-name",
    /// A name whose record cannot be decoded.
    DamagedName = "damaged-name",
    /// A name that a look-up does not find: in another shard, or at another position than its hash.
    MisplacedName = "misplaced-name",
    /// A name with another kind than that of its inode.
    WrongKind = "wrong-kind",
    /// A name of an inode that may have no name, or no second one.
    ExtraName = "extra-name",
    /// An inode whose record cannot be decoded.
    DamagedInode = "damaged-inode",
    /// An inode without names.
    LostInode = "lost-inode",
    /// A list of inodes without names that contradicts the inodes.
    OrphanList = "orphan-list",
    /// A link count that is not the number of names.
    LinkCount = "link-count",
    /// An entry count that is not the number of names in a directory.
    EntryCount = "entry-count",
    /// An inode that does not know its names.
    Links = "links",
    /// A directory inside itself.
    Loop = "loop",
    /// Attributes that cannot be decoded or contradict each other.
    Attributes = "attributes",
    /// A layout that cannot be decoded.
    Layout = "layout",
    /// A record of an inode that does not exist.
    Leftover = "leftover",
    /// The root directory is missing or no directory.
    Root = "root",
    /// A shard without its directory, or with other rights.
    Shard = "shard",
    /// A directory without its shards, or with a damaged list of them.
    ShardList = "shard-list",
    /// Object ids in use beyond the mark, or a damaged mark.
    ObjectMark = "object-mark",
    /// Data on an MDT that belongs to no file, or contradicts its head.
    UnusedData = "unused-data",
    /// A distributed transaction that is not finished, or will never be decided.
    Transaction = "transaction",
    /// A changelog that contradicts its head, or cannot be decoded.
    Changelog = "changelog",
    /// Records of quotas that cannot be decoded.
    Quota = "quota",
    /// Other records that cannot be decoded.
    DamagedRecord = "damaged-record",
    /// Damage of the store below the records.
    Store = "store",
    /// A damaged copy of a superblock or configuration.
    Copy = "copy",
    /// Data or an index of an object store that is damaged.
    Data = "data",
    /// An object that belongs to no file.
    OrphanObject = "orphan-object",
    /// An object that was written to and does not exist.
    LostObject = "lost-object",
    /// An object in the layouts of two files.
    SharedObject = "shared-object",
    /// An object that its OST has never allocated.
    ForeignObject = "foreign-object",
    /// An object that is counted for others than the owners of its file.
    ObjectOwner = "object-owner",
    /// An object that is recorded as another file's, or at another place of its layout.
    ObjectPlace = "object-place",
}
