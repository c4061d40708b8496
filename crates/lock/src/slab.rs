//! Values under small numbers that are reused.

/// See the [module documentation](self). A number is valid from [`Slab::insert`] to [`Slab::remove`].
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores a value and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(key) = self.free.pop() {
            self.slots[key as usize] = Some(value);
            return key;
        }
        self.slots.push(Some(value));
        // Engines bound the number of their locks far below this.
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 values, see Limits")
    }

    /// Removes a value and returns it.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.slots.get_mut(key as usize)?.take();
        if value.is_some() {
            self.free.push(key);
        }
        value
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.slots.get_mut(key as usize)?.as_mut()
    }

    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        self.slots.get(key as usize)?.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Values with their numbers, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(key, slot)| Some((key as u32, slot.as_ref()?)))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, key: u32) -> &T {
        self.slots[key as usize].as_ref().expect("engines drop a key together with its value")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, key: u32) -> &mut T {
        self.slots[key as usize].as_mut().expect("engines drop a key together with its value")
    }
}
