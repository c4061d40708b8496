//! Set of requested fields of a layout.

/// A set of fields. The text of each, and whether it has a label, depends on the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fields(u32);

impl Fields {
    /// `-c`
    pub const COUNT: Fields = Fields(1);
    /// `-S`
    pub const SIZE: Fields = Fields(1 << 1);
    /// `-i`
    pub const OFFSET: Fields = Fields(1 << 2);
    /// `-p`
    pub const POOL: Fields = Fields(1 << 3);
    /// `-v`: magic, identity and offsets within the value.
    pub const DETAIL: Fields = Fields(1 << 4);
    /// `-q`: the objects.
    pub const OBJECTS: Fields = Fields(1 << 5);
    /// `-g`
    pub const GENERATION: Fields = Fields(1 << 6);
    /// `-m`: shows no field of the layout.
    pub const MDT_INDEX: Fields = Fields(1 << 7);
    /// `-L`
    pub const PATTERN: Fields = Fields(1 << 8);
    /// `--component-count`
    pub const COMPONENT_COUNT: Fields = Fields(1 << 9);
    /// `--component-flags`
    pub const COMPONENT_FLAGS: Fields = Fields(1 << 10);
    /// `--component-start`
    pub const COMPONENT_START: Fields = Fields(1 << 11);
    /// `-E`
    pub const COMPONENT_END: Fields = Fields(1 << 12);
    /// `-I`
    pub const COMPONENT_ID: Fields = Fields(1 << 13);
    /// `-F`
    pub const FID: Fields = Fields(1 << 14);
    /// `-N`
    pub const MIRROR_COUNT: Fields = Fields(1 << 15);
    /// Number of a component's mirror.
    pub const MIRROR_ID: Fields = Fields(1 << 16);
    /// `-z`
    pub const EXTENSION_SIZE: Fields = Fields(1 << 17);

    /// Fields that are shown by default.
    pub const ALL: Fields = Fields(
        Self::COUNT.0
            | Self::SIZE.0
            | Self::OFFSET.0
            | Self::POOL.0
            | Self::OBJECTS.0
            | Self::GENERATION.0
            | Self::PATTERN.0
            | Self::COMPONENT_COUNT.0
            | Self::COMPONENT_FLAGS.0
            | Self::COMPONENT_START.0
            | Self::COMPONENT_END.0
            | Self::COMPONENT_ID.0
            | Self::MIRROR_COUNT.0
            | Self::MIRROR_ID.0
            | Self::EXTENSION_SIZE.0,
    );
    /// Fields that only components have; if one is requested, a plain layout is shown as one component.
    const OF_COMPONENTS: Fields = Fields(
        Self::COMPONENT_COUNT.0
            | Self::COMPONENT_FLAGS.0
            | Self::COMPONENT_START.0
            | Self::COMPONENT_END.0
            | Self::COMPONENT_ID.0,
    );

    /// Returns the union with other fields.
    #[must_use]
    pub fn with(self, more: Fields) -> Fields {
        Fields(self.0 | more.0)
    }

    /// Returns true if one of these fields is requested.
    pub fn has(self, any: Fields) -> bool {
        self.0 & any.0 != 0
    }

    /// Returns true if no field is requested.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true without a selection of fields, so that every component is shown.
    pub fn is_whole(self) -> bool {
        self.0 & Self::ALL.0 == Self::ALL.0
    }

    /// Returns true if the value of a field needs a label, because there are others.
    pub(super) fn labels(self, field: Fields) -> bool {
        self.0 & !field.0 != 0
    }

    /// Returns true if a plain layout has to be shown as one component.
    pub(super) fn asks_for_components(self) -> bool {
        self.0 & !Self::DETAIL.0 != Self::ALL.0 && self.has(Self::OF_COMPONENTS)
    }
}
