//! The layout of a file: components, their stripes, and the objects behind them.

use crate::pool::PoolName;
use crate::stripe::StripeMath;
use bitflags::bitflags;
use nacre_types::Fid;
use nacre_types::limits::{DATA_INDEX_MAX, TARGET_INDEX_MAX};

/// A range of file offsets `[start, end)`; `end == u64::MAX` means "to the end of the file, wherever that is".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// One past the last byte, or [`Extent::EOF`].
    pub end: u64,
}

impl Extent {
    /// The `end` of a component that has none.
    pub const EOF: u64 = u64::MAX;
    /// The whole file.
    pub const WHOLE: Extent = Extent { start: 0, end: Extent::EOF };

    /// True if it has no bytes: a component that has not grown yet.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True if `offset` lies inside.
    pub const fn contains(&self, offset: u64) -> bool {
        self.start <= offset && (offset < self.end || self.end == Extent::EOF)
    }
}

/// One object of a component and the OST that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StripeObject {
    /// Index of the OST.
    pub ost_index: u16,
    /// The object there.
    pub object: Fid,
    /// Data was written to it, so it exists: an OST that does not have it has lost it. Never set for objects on an MDT, and not
    /// set for objects written before this was recorded. See [`crate::written`].
    pub written: bool,
}

impl StripeObject {
    /// An object that nobody is known to have written to.
    pub const fn new(ost_index: u16, object: Fid) -> StripeObject {
        StripeObject { ost_index, object, written: false }
    }

    /// The object that holds the data of a component on an MDT. It has the FID of the file that it was made for, with another
    /// version for each that was; its "OST" is the data part of the MDT that owns this FID: indexes from [`TARGET_INDEX_MAX`] on, which no OST has.
    ///
    /// No index reaches a disk; the highest one stands for all MDTs beyond it, which have no data part yet.
    pub fn on_mdt(object: Fid) -> StripeObject {
        let index = object.mdt_index().min(DATA_INDEX_MAX - 1 - TARGET_INDEX_MAX);
        StripeObject::new(TARGET_INDEX_MAX + index, object)
    }

    /// True if an MDT holds it, not an OST.
    pub const fn is_on_mdt(&self) -> bool {
        self.ost_index >= TARGET_INDEX_MAX
    }
}

/// How a component's bytes are spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// Striped over objects, each on another OST.
    #[default]
    Raid0,
    /// In one object on the MDT: only the first component, which then has no stripes.
    Mdt,
    /// Striped over objects, some of them on the same OST.
    Overstriped,
}

impl Pattern {
    /// Lustre's bits (`lmm_pattern`).
    pub const fn bits(self) -> u32 {
        match self {
            Pattern::Raid0 => 0x1,
            Pattern::Mdt => 0x100,
            Pattern::Overstriped => 0x201,
        }
    }

    /// The pattern with these bits; 0 is the default. `None` for kinds that do not exist here.
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
    /// State of a component and wishes for it, with the bits of Lustre's `lcme_flags`. Bits for kinds of components that
    /// do not exist here yet are not in the set, so that they are refused where they come in.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ComponentFlags: u32 {
        /// Reads are to use this mirror; kept, without effect while files have one copy.
        const PREFER_READ = 0x2;
        /// Writes are to use this mirror; kept as `PREFER_READ` is.
        const PREFER_WRITE = 0x4;
        /// Objects have been allocated (`init` in Lustre's output).
        const INIT = 0x10;
        /// This mirror is left out when others are brought up to date; kept as `PREFER_READ` is.
        const NOSYNC = 0x20;
        /// Room that the component before it grows into ([`crate::grow`]). Never has objects.
        const EXTENSION = 0x40;
        /// Data is not to be compressed, which it never is here.
        const NOCOMPRESS = 0x400;
    }
}

impl ComponentFlags {
    /// What a wish may have.
    pub const WISHES: ComponentFlags = ComponentFlags::INIT.complement();
}

/// A part of a file with its own striping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// Number within the file; 0 for a plain layout, from 1 in composite ones.
    pub id: u32,
    /// File range that it covers.
    pub extent: Extent,
    /// State.
    pub flags: ComponentFlags,
    /// How its bytes are spread.
    pub pattern: Pattern,
    /// Bytes on one object before the next; a multiple of 64 KiB, never 0. On an MDT: the component's size. Of an extension:
    /// the step of growth in KiB, also a multiple of 64 Ki.
    pub stripe_size: u32,
    /// Stripes: the number wanted until instantiated (0xffff = all OSTs), then exactly `objects.len()`. On an MDT and of an
    /// extension: 0.
    pub stripe_count: u16,
    /// OST wanted for the first stripe, `None` to let the server choose.
    pub first_ost: Option<u16>,
    /// Pool to allocate from.
    pub pool: Option<PoolName>,
    /// Exact OSTs that are wanted, until instantiated; empty: the server chooses.
    pub osts: Vec<u16>,
    /// Layout generation of this component, counts changes.
    pub generation: u16,
    /// The objects in stripe order; empty until instantiated. On an MDT: one, see [`StripeObject::on_mdt`].
    pub objects: Vec<StripeObject>,
}

/// Bytes that the step of an extension is counted in. Source: reference 3.6.
pub const EXTENSION_UNIT: u64 = 1024;
/// Wish for "all OSTs" in a component that is not instantiated.
pub const STRIPE_COUNT_ALL: u16 = u16::MAX;
/// Wishes from here on are multiples of the number of OSTs: 0xfffe is two stripes on each, this one 32.
pub const STRIPE_COUNT_MULTIPLE_MIN: u16 = 0xffe0;

/// How many stripes on each OST a wish is for; `None` for one that says how many in all.
pub const fn stripes_per_ost(count: u16) -> Option<u16> {
    if count >= STRIPE_COUNT_MULTIPLE_MIN { Some(u16::MAX - count + 1) } else { None }
}

impl Component {
    /// True if the component has objects.
    pub fn is_instantiated(&self) -> bool {
        self.flags.contains(ComponentFlags::INIT)
    }

    /// True for room that the component before it grows into.
    pub fn is_extension(&self) -> bool {
        self.flags.contains(ComponentFlags::EXTENSION)
    }

    /// Bytes by which the component before grows; `None` if this is no extension.
    pub fn extension_size(&self) -> Option<u64> {
        self.is_extension().then(|| u64::from(self.stripe_size) * EXTENSION_UNIT)
    }

    /// True if it holds bytes of `[start, end)`.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.extent.start < end
            && !self.extent.is_empty()
            && (start < self.extent.end || self.extent.end == Extent::EOF)
    }

    /// The arithmetic of an instantiated component; `None` before.
    pub fn math(&self) -> Option<StripeMath> {
        StripeMath::new(self.stripe_size, u16::try_from(self.objects.len()).ok()?)
    }
}

/// Which of Lustre's forms a layout takes when shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutForm {
    /// One component over the whole file (`lov_user_md_v1`/`v3`).
    Plain,
    /// A list of components (`lov_comp_md_v1`).
    Composite,
}

/// The layout of a file. Components are in order, do not overlap and leave no gap. Empty ones are those that have not grown into the
/// extension behind them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// How it is shown and stored.
    pub form: LayoutForm,
    /// Grows with every change, so that a client can tell an old copy.
    pub generation: u32,
    /// At least one component.
    pub components: Vec<Component>,
}

impl Layout {
    /// The component that holds byte `offset`; `None` past the end of the last one.
    pub fn component_at(&self, offset: u64) -> Option<&Component> {
        self.components.iter().find(|c| c.extent.contains(offset))
    }

    /// True if every component that a write to `[start, end)` touches has objects.
    pub fn is_instantiated(&self, start: u64, end: u64) -> bool {
        self.components.iter().filter(|c| c.touches(start, end)).all(Component::is_instantiated)
    }

    /// True if every component has objects and the file has no end behind which components could be added, so that it stays
    /// as it is whatever anybody writes.
    pub fn is_complete(&self) -> bool {
        self.end() == Extent::EOF && self.components.iter().all(Component::is_instantiated)
    }

    /// One past the last byte that the file can have; [`Extent::EOF`] if nothing but the limits of numbers ends it.
    pub fn end(&self) -> u64 {
        self.components.last().map_or(0, |last| last.extent.end)
    }

    /// Places of the components that a write that ends at `end` has to give objects: all before `end` without any, so that
    /// there is never data behind a component that has none. Extensions never get any.
    pub fn to_instantiate(&self, end: u64) -> impl Iterator<Item = usize> + '_ {
        let lacks = move |c: &Component| c.touches(0, end) && !c.is_extension() && !c.is_instantiated();
        self.components.iter().enumerate().filter(move |(_, c)| lacks(c)).map(|(place, _)| place)
    }

    /// True if a write that ends at `end` changes the layout: components get objects, or grow.
    pub fn is_to_change(&self, end: u64) -> bool {
        self.components.iter().any(|c| c.touches(0, end) && !c.is_instantiated())
    }

    /// Gives objects to the component at `place`. The generation is the caller's, who may instantiate several at once.
    pub fn instantiate(&mut self, place: usize, objects: Vec<StripeObject>) {
        let Some(component) = self.components.get_mut(place) else { return };
        component.stripe_count = objects.len() as u16;
        component.first_ost = objects.first().map(|object| object.ost_index);
        component.flags |= ComponentFlags::INIT;
        component.osts = Vec::new();
        // Said only of those that really are.
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

    /// Gives the component on an MDT, if there is one without an object, this one. It needs no other server and no
    /// room, so that files have it from the beginning.
    pub fn place_on_mdt(&mut self, object: Fid) {
        let lacks = |c: &&mut Component| c.pattern == Pattern::Mdt && !c.is_instantiated();
        if let Some(component) = self.components.first_mut().filter(lacks) {
            component.flags |= ComponentFlags::INIT;
            component.objects = vec![StripeObject::on_mdt(object)];
        }
    }

    /// True if the first component is to be on an MDT and nothing has an object yet: a file that nobody has given another
    /// layout has it only if its first data is small.
    pub fn has_open_head(&self) -> bool {
        !self.has_objects() && self.components.first().is_some_and(|first| first.pattern == Pattern::Mdt)
    }

    /// The object on an MDT, if there is one.
    pub fn object_on_mdt(&self) -> Option<&StripeObject> {
        self.components.first()?.objects.first().filter(|object| object.is_on_mdt())
    }

    /// All objects, in component and stripe order.
    pub fn objects(&self) -> impl Iterator<Item = &StripeObject> {
        self.components.iter().flat_map(|c| c.objects.iter())
    }

    /// True if there is at least one object, so data may exist on OSTs.
    pub fn has_objects(&self) -> bool {
        self.components.iter().any(|c| !c.objects.is_empty())
    }

    /// File size implied by the sizes of the objects, given in the order of [`Layout::objects`].
    ///
    /// Source: reference 4.7. Objects past the end of the slice count as empty.
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
