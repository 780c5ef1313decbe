//! The dashboard over HTTP: protection, data and the stream. `browser` has the tests of the page.

mod figures;
mod force;
mod protection;
mod routes;
mod stream;
mod support;
