// Sets the theme before the page is painted. A classic script: modules run too late for that.
(() => {
  const chosen = localStorage.getItem("synergon-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
