//! The program `nacre-sim`.

fn main() {
    let _ = nacre_sim::Shape { mdts: 1, osts: 1, clients: 1 };
}
