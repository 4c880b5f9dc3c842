// Before the first paint: what the operator chose instead of what the system prefers.
{
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
