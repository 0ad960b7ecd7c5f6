package egressd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/testfiles"
)

var (
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageHeading = regexp.MustCompile(`^#+ (.*)`)
)

// TestLinksLeadSomewhere follows each link of the documentation and of the pages at the root: the file exists,
// and has the heading.
func TestLinksLeadSomewhere(t *testing.T) {
	pages := map[string]string{}
	for name, text := range testfiles.Pages(t) {
		pages[filepath.Join("docs", name)] = text
	}
	for _, pattern := range []string{"*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			pages[name] = string(text)
		}
	}
	links := 0
	for name, text := range pages {
		for _, match := range pageLink.FindAllStringSubmatch(withoutFences(text), -1) {
			links++
			if problem := follow(pages, name, match[1]); problem != "" {
				t.Errorf("%s: %s: %s", name, match[1], problem)
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links were found", links)
	}
}

// TestTheSiteHasEachPage holds the menu of the site to the pages.
func TestTheSiteHasEachPage(t *testing.T) {
	text, err := os.ReadFile("mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	menu := string(text)
	for name := range testfiles.Pages(t) {
		if strings.Count(menu, " "+name+"\n") != 1 {
			t.Errorf("mkdocs.yml has docs/%s %d times in its nav", name, strings.Count(menu, " "+name+"\n"))
		}
	}
	for _, match := range regexp.MustCompile(`- (?:.*: )?(\S+\.md)`).FindAllStringSubmatch(menu, -1) {
		if _, err := os.Stat(filepath.Join("docs", match[1])); err != nil {
			t.Errorf("mkdocs.yml: %v", err)
		}
	}
}

func TestALinkThatLeadsNowhereIsFound(t *testing.T) {
	pages := map[string]string{"docs/a.md": "# One\n\n## Two words\n", "docs/how-to/b.md": "# B\n"}
	for link, want := range map[string]string{
		"../a.md": "", "../a.md#two-words": "", "https://example.com/": "", "#b": "",
		"../c.md": "there is no such file", "../a.md#three": "there is no such heading", "#two": "there is no such heading",
	} {
		if got := follow(pages, "docs/how-to/b.md", link); got != want {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}

// follow says what is wrong with a link of a page.
func follow(pages map[string]string, from, link string) string {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return ""
	}
	path, anchor, _ := strings.Cut(link, "#")
	target := from
	if path != "" {
		target = filepath.Join(filepath.Dir(from), filepath.FromSlash(path))
	}
	text, isPage := pages[target]
	if !isPage {
		if _, err := os.Stat(target); err != nil {
			return "there is no such file"
		}
		return ""
	}
	if anchor == "" {
		return ""
	}
	for line := range strings.Lines(withoutFences(text)) {
		if m := pageHeading.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && anchorOf(m[1]) == anchor {
			return ""
		}
	}
	return "there is no such heading"
}

var notInAnchors = regexp.MustCompile(`[^a-z0-9 _-]`)

// anchorOf is the anchor that GitHub and mkdocs give a heading.
func anchorOf(heading string) string {
	return strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// withoutFences returns a page without its code blocks and code spans.
func withoutFences(text string) string { return codeSpan.ReplaceAllString(testfiles.Prose(text), "") }

var codeSpan = regexp.MustCompile("`[^`\n]*`")
