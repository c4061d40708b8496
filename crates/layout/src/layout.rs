//! The layout of a file: components, their stripes, and the objects behind them.

use crate::pool::PoolName;
use crate::stripe::StripeMath;
use bitflags::bitflags;
use nacre_types::Fid;
use nacre_types::limits::{DATA_INDEX_MAX, TARGET_INDEX_MAX};

/// A range of file offsets `[start, end)`; `end == u64::MAX` means "to the end of the file, wherever that
/// is".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of the first byte.
    pub start: u64,
    /// One past the last byte, or [`Extent::EOF`].
    pub end: u64,
}

impl Extent {
    /// The `end` of a component that reaches to the end of the file.
    pub const EOF: u64 = u64::MAX;
    /// The whole file.
    pub const WHOLE: Extent = Extent { start: 0, end: Extent::EOF };

    /// Returns true if the extent has no bytes: a component that has not grown yet.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns true if `offset` is inside.
    pub const fn contains(&self, offset: u64) -> bool {
        self.start <= offset && (offset < self.end || self.end == Extent::EOF)
    }
}

/// An object of a component and the OST that stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StripeObject {
    /// Index of the OST, or of an MDT's data part (see [`StripeObject::on_mdt`]).
    pub ost_index: u16,
    /// FID of the object on that OST.
    pub object: Fid,
    /// Data was written to the object, so it exists: an OST that does not have it has lost it. Never set for
    /// objects on an MDT, nor for objects written before this was recorded. See [`crate::written`].
    pub written: bool,
}

impl StripeObject {
    /// Builds an object without a record of a write.
    pub const fn new(ost_index: u16, object: Fid) -> StripeObject {
        StripeObject { ost_index, object, written: false }
    }

    /// Builds the object with the data of a component on an MDT. It has the FID of the file that it was
    /// created for, with a different version each time; its "OST" is the data part of the MDT that owns this
    /// FID: indexes from [`TARGET_INDEX_MAX`] on, which no OST has.
    ///
    /// No such index is stored on disk; the highest one stands for all MDTs beyond it, which have no data
    /// part yet.
    pub fn on_mdt(object: Fid) -> StripeObject {
        let index = object.mdt_index().min(DATA_INDEX_MAX - 1 - TARGET_INDEX_MAX);
        StripeObject::new(TARGET_INDEX_MAX + index, object)
    }

    /// Returns true if the object is stored on an MDT, not on an OST.
    pub const fn is_on_mdt(&self) -> bool {
        self.ost_index >= TARGET_INDEX_MAX
    }
}

/// Distribution of a component's bytes over objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// Striped over objects on different OSTs.
    #[default]
    Raid0,
    /// In one object on the MDT: only the first component, which then has no stripes.
    Mdt,
    /// Striped over objects of which several may be on the same OST.
    Overstriped,
}

impl Pattern {
    /// Returns Lustre's bits (`lmm_pattern`).
    pub const fn bits(self) -> u32 {
        match self {
            Pattern::Raid0 => 0x1,
            Pattern::Mdt => 0x100,
            Pattern::Overstriped => 0x201,
        }
    }

    /// Returns the pattern with these bits; 0 is the default. `None` for kinds that are not supported.
    pub const fn from_bits(bits: u32) -> Option<Pattern> {
        match bits {
            0 | 0x1 => Some(Pattern::Raid0),
            0x100 => Some(Pattern::Mdt),
            0x201 => Some(Pattern::Overstriped),
            _ => None,
        }
    }
}

bitflags! {
    /// State of a component and requests for it, with the bits of Lustre's `lcme_flags`. Bits of unsupported
    /// kinds of components are not in the set, so that decoding refuses them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ComponentFlags: u32 {
        /// Reads prefer this mirror; stored, without effect while files have one copy.
        const PREFER_READ = 0x2;
        /// Writes prefer this mirror; stored, without effect while files have one copy.
        const PREFER_WRITE = 0x4;
        /// Objects have been allocated (`init` in Lustre's output).
        const INIT = 0x10;
        /// Resynchronisation skips this mirror; stored, without effect while files have one copy.
        const NOSYNC = 0x20;
        /// An extension: the component before it grows into it ([`crate::grow`]). Never has objects.
        const EXTENSION = 0x40;
        /// Data is not to be compressed, which it never is here.
        const NOCOMPRESS = 0x400;
    }
}

impl ComponentFlags {
    /// Flags that a specification may have.
    pub const REQUESTABLE: ComponentFlags = ComponentFlags::INIT.complement();
}

/// A part of a file with its own striping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// Number within the file; 0 for a plain layout, from 1 in composite ones.
    pub id: u32,
    /// Range of file offsets that the component covers.
    pub extent: Extent,
    /// State and requests.
    pub flags: ComponentFlags,
    /// Distribution of its bytes over objects.
    pub pattern: Pattern,
    /// Stripe size: bytes on one object before the next; a multiple of 64 KiB, never 0. On an MDT: the
    /// component's size in bytes. Of an extension: the step of growth in KiB, also a multiple of 64 Ki.
    pub stripe_size: u32,
    /// Stripe count: until instantiated the requested number (0xffff = all OSTs), then exactly
    /// `objects.len()`. On an MDT and of an extension: 0.
    pub stripe_count: u16,
    /// Requested OST of the first stripe; `None` lets the MDT choose.
    pub first_ost: Option<u16>,
    /// Pool to allocate objects from.
    pub pool: Option<PoolName>,
    /// Exact OSTs requested, until instantiated; empty lets the MDT choose.
    pub osts: Vec<u16>,
    /// Layout generation of this component, raised with each change.
    pub generation: u16,
    /// The objects in stripe order; empty until instantiated. On an MDT: one, see [`StripeObject::on_mdt`].
    pub objects: Vec<StripeObject>,
}

/// Unit of an extension's step in bytes.
pub const EXTENSION_UNIT: u64 = 1024;
/// Stripe count of a component that is not instantiated and is to use all OSTs.
pub const STRIPE_COUNT_ALL: u16 = u16::MAX;
/// Stripe counts from here on request a multiple of the number of OSTs: 0xfffe is two stripes on each, this
/// one 32.
pub const STRIPE_COUNT_MULTIPLE_MIN: u16 = 0xffe0;

/// Returns the requested stripes on each OST; `None` for a count of all stripes.
pub const fn stripes_per_ost(count: u16) -> Option<u16> {
    if count >= STRIPE_COUNT_MULTIPLE_MIN { Some(u16::MAX - count + 1) } else { None }
}

impl Component {
    /// Returns true if the component has objects.
    pub fn is_instantiated(&self) -> bool {
        self.flags.contains(ComponentFlags::INIT)
    }

    /// Returns true for an extension, into which the component before it grows.
    pub fn is_extension(&self) -> bool {
        self.flags.contains(ComponentFlags::EXTENSION)
    }

    /// Returns the bytes by which the component before grows; `None` if this is not an extension.
    pub fn extension_size(&self) -> Option<u64> {
        self.is_extension().then(|| u64::from(self.stripe_size) * EXTENSION_UNIT)
    }

    /// Returns true if the component has bytes of `[start, end)`.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.extent.start < end
            && !self.extent.is_empty()
            && (start < self.extent.end || self.extent.end == Extent::EOF)
    }

    /// Returns the stripe arithmetic of an instantiated component; otherwise `None`.
    pub fn math(&self) -> Option<StripeMath> {
        StripeMath::new(self.stripe_size, u16::try_from(self.objects.len()).ok()?)
    }
}

/// Lustre's form in which a layout is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutForm {
    /// One component over the whole file (`lov_user_md_v1`/`v3`).
    Plain,
    /// A list of components (`lov_comp_md_v1`).
    Composite,
}

/// The layout of a file. Components are in order, do not overlap and leave no gap. An empty component has not
/// grown into the extension behind it yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Form in which it is shown and stored.
    pub form: LayoutForm,
    /// Generation of the layout, raised with each change, so that a client recognises an outdated copy.
    pub generation: u32,
    /// Components in file order, at least one.
    pub components: Vec<Component>,
}

impl Layout {
    /// Returns the component with byte `offset`; `None` past the end of the last one.
    pub fn component_at(&self, offset: u64) -> Option<&Component> {
        self.components.iter().find(|c| c.extent.contains(offset))
    }

    /// Returns true if every component that a write to `[start, end)` touches has objects.
    pub fn is_instantiated(&self, start: u64, end: u64) -> bool {
        self.components.iter().filter(|c| c.touches(start, end)).all(Component::is_instantiated)
    }

    /// Returns true if every component has objects and the last one has no end behind which components could
    /// be added, so that no write changes the layout.
    pub fn is_complete(&self) -> bool {
        self.end() == Extent::EOF && self.components.iter().all(Component::is_instantiated)
    }

    /// Returns one past the last byte that the file can have; [`Extent::EOF`] if only the range of offsets
    /// limits it.
    pub fn end(&self) -> u64 {
        self.components.last().map_or(0, |last| last.extent.end)
    }

    /// Returns the places of the components that need objects for a write that ends at `end`: all before
    /// `end` without any, so that there is never data behind a component without objects. Extensions never
    /// get objects.
    pub fn to_instantiate(&self, end: u64) -> impl Iterator<Item = usize> + '_ {
        let lacks = move |c: &Component| c.touches(0, end) && !c.is_extension() && !c.is_instantiated();
        self.components.iter().enumerate().filter(move |(_, c)| lacks(c)).map(|(place, _)| place)
    }

    /// Returns true if a write that ends at `end` changes the layout: components get objects, or grow.
    pub fn is_to_change(&self, end: u64) -> bool {
        self.components.iter().any(|c| c.touches(0, end) && !c.is_instantiated())
    }

    /// Sets the objects of the component at `place`. The caller raises the generation, since it may
    /// instantiate several components at once.
    pub fn instantiate(&mut self, place: usize, objects: Vec<StripeObject>) {
        let Some(component) = self.components.get_mut(place) else { return };
        component.stripe_count = objects.len() as u16;
        component.first_ost = objects.first().map(|object| object.ost_index);
        component.flags |= ComponentFlags::INIT;
        component.osts = Vec::new();
        // The component is marked overstriped only if several objects share an OST.
        let mut indexes: Vec<u16> = objects.iter().map(|object| object.ost_index).collect();
        indexes.sort_unstable();
        let is_overstriped = indexes.windows(2).any(|pair| pair[0] == pair[1]);
        component.pattern = match component.pattern {
            Pattern::Mdt => Pattern::Mdt,
            _ if is_overstriped => Pattern::Overstriped,
            _ => Pattern::Raid0,
        };
        component.objects = objects;
    }

    /// Sets the object of the component on an MDT, if there is such a component without one. The object needs
    /// no other server and no free space there, so files have it from their creation.
    pub fn place_on_mdt(&mut self, object: Fid) {
        let lacks = |c: &&mut Component| c.pattern == Pattern::Mdt && !c.is_instantiated();
        if let Some(component) = self.components.first_mut().filter(lacks) {
            component.flags |= ComponentFlags::INIT;
            component.objects = vec![StripeObject::on_mdt(object)];
        }
    }

    /// Returns true if the first component is to be on an MDT and no component has an object yet: a file with
    /// the default layout keeps this head only if its first data is small.
    pub fn has_open_head(&self) -> bool {
        !self.has_objects() && self.components.first().is_some_and(|first| first.pattern == Pattern::Mdt)
    }

    /// Returns the object on an MDT, if there is one.
    pub fn object_on_mdt(&self) -> Option<&StripeObject> {
        self.components.first()?.objects.first().filter(|object| object.is_on_mdt())
    }

    /// Returns all objects, in component and stripe order.
    pub fn objects(&self) -> impl Iterator<Item = &StripeObject> {
        self.components.iter().flat_map(|c| c.objects.iter())
    }

    /// Returns true if there is at least one object, so that data may exist on OSTs.
    pub fn has_objects(&self) -> bool {
        self.components.iter().any(|c| !c.objects.is_empty())
    }

    /// Returns the file size implied by the sizes of the objects, given in the order of [`Layout::objects`].
    /// Objects past the end of the slice count as empty.
    pub fn file_size(&self, object_sizes: &[u64]) -> u64 {
        let mut sizes = object_sizes.iter();
        let mut file_size = 0;
        for component in &self.components {
            let math = component.math();
            for (index, _) in component.objects.iter().enumerate() {
                let object_size = sizes.next().copied().unwrap_or(0);
                if let Some(math) = math {
                    file_size = file_size.max(math.file_size(index as u16, object_size));
                }
            }
        }
        file_size
    }
}
