// Before the first paint: apply the operator's choice over the system preference.
{
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
