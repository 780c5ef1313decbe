//! Keys from the path of the request.

mod by_path;
#[cfg(feature = "axum")]
mod by_path_param;
#[cfg(feature = "axum")]
mod by_path_param_as;
#[cfg(feature = "axum")]
mod by_path_params;
#[cfg(feature = "axum")]
mod params;

pub use by_path::ByPath;
#[cfg(feature = "axum")]
pub use by_path_param::ByPathParam;
#[cfg(feature = "axum")]
pub use by_path_param_as::ByPathParamAs;
#[cfg(feature = "axum")]
pub use by_path_params::ByPathParams;
