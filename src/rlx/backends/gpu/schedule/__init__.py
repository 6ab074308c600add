"""How kernels run on a GPU, form by form: data, chosen before any code is written."""
