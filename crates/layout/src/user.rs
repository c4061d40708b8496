//! Lustre's binary form of layouts: `lov_user_md_v1` and `_v3`, also our on-disk form.
