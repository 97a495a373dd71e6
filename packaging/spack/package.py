from spack.package import *


class PyMdioLayouts(PythonPackage):
    """How molecular-dynamics trajectories lie on disk and get read in parallel."""

    homepage = "HOME_URL"
    url = "HOME_URL/releases/download/v0.1.0/mdio_layouts-0.1.0.tar.gz"

    license("MIT")

    version("0.1.0", sha256="SHA256")

    variant("mpi", default=True, description="Conversions and analyses on the ranks of MPI")
    variant("dask", default=False, description="Work on Dask clusters")

    depends_on("cxx", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-pybind11@2.13:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-numpy@2:")
        depends_on("py-mdanalysis@2.10:")
        depends_on("py-h5py@3.12:")
        depends_on("py-h5py+mpi", when="+mpi")
        depends_on("py-netcdf4@1.7.1:")
        depends_on("py-zarr@3.1.4:")
        depends_on("py-numcodecs@0.16.6:")
        depends_on("py-tqdm@4.60:")
        depends_on("py-mpi4py@4:", when="+mpi")
        depends_on("py-dask@2025.1:", when="+dask")
        depends_on("py-distributed@2025.1:", when="+dask")
