package egressd_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A long sentence is opaque if it consists of function words: it names nobody and nothing, so its reader
// cannot tell what it is about. Public Go projects have 0.3 to 2.9 % of such sentences.
const (
	longWords   = 16   // a sentence with fewer words is not measured
	opaqueShare = 0.65 // of a sentence's words, above which it is opaque
	mostOpaque  = 0.03 // of the long sentences of one room
)

// functionWords are pronouns, articles, conjunctions, prepositions, auxiliaries and the like.
var functionWords = wordSet(`a about above after again all also although among an and another any anybody anything are
as at be because been before behind below beside between both but by can could did do does done down each either else
end for from goes had has have he her here him his how i if in into is it its itself last least less like made make
many may might more most much must neither no nobody none nor not nothing of off on once one only or other others our
out over own said same says several she should since so some somebody something such than that the their them
themselves then there these they this those though through till to too under until up us was we were what whatever
when where whether which while who whoever whom whose will with within without would yet you your`)

// unclear lists the rooms that have more than mostOpaque still, with the number of opaque sentences that each
// may have. Numbers only ever go down.
var unclear = map[string]int{}

func TestSentencesNameWhatTheyAreAbout(t *testing.T) {
	rooms := map[string][]sentence{}
	for _, s := range sources(t) {
		rooms[s.pkg] = append(rooms[s.pkg], commentsOf(t, s.path)...)
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			rooms[filepath.ToSlash(page)] = pageSentences(t, page)
		}
	}
	for room, all := range rooms {
		var long, opaque []sentence
		for _, s := range all {
			if len(s.words) < longWords {
				continue
			}
			long = append(long, s)
			if s.functionShare() > opaqueShare {
				opaque = append(opaque, s)
			}
		}
		share := float64(len(opaque)) / float64(max(len(long), 1))
		if len(opaque) > 1 && share > mostOpaque && len(opaque) > unclear[room] {
			t.Errorf("%s: %d of %d long sentences are opaque (%.1f %%); name who does what in", room, len(opaque), len(long), 100*share)
			for _, s := range opaque {
				t.Logf("  %s: %s", s.at, s.text)
			}
		}
	}
	for room := range unclear {
		if rooms[room] == nil {
			t.Errorf("unclear: there is no %s", room)
		}
	}
}

func TestAnOpaqueSentenceIsFound(t *testing.T) {
	for text, want := range map[string]bool{
		"What it is told to do by those who may, it does for all of them as they are, until it is told otherwise by one of those.":                      true,
		"The relay calls the function for each chunk until the function returns Pass or Refuse, and drops a refused chunk before the upstream gets it.": false,
	} {
		all := split("test", text)
		if len(all) != 1 || len(all[0].words) < longWords || all[0].functionShare() > opaqueShare != want {
			t.Errorf("%q: opaque %v, want %v", text, !want, want)
		}
	}
}

// A sentence of a comment or of a page.
type sentence struct {
	at    string // file
	text  string
	words []string
}

func (s sentence) functionShare() float64 {
	n := 0
	for _, w := range s.words {
		if functionWords[strings.ToLower(w)] {
			n++
		}
	}
	return float64(n) / float64(len(s.words))
}

var (
	sentenceEnd = regexp.MustCompile(`[.:;!]\s+`)
	word        = regexp.MustCompile(`[A-Za-z][A-Za-z'’\-]*`)
	listItem    = regexp.MustCompile(`^\s*([-*>]|\d+\.)\s+`)
)

func split(at, paragraph string) (all []sentence) {
	for _, text := range sentenceEnd.Split(paragraph, -1) {
		if words := word.FindAllString(text, -1); len(words) > 0 {
			all = append(all, sentence{at, text, words})
		}
	}
	return all
}

func commentsOf(t *testing.T, path string) (all []sentence) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Comments {
		for paragraph := range strings.SplitSeq(withoutCode(group.Text()), "\n\n") {
			all = append(all, split(path, strings.Join(strings.Fields(paragraph), " "))...)
		}
	}
	return all
}

// withoutCode returns the text of a comment without its indented lines.
func withoutCode(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "  ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// pageSentences reads the paragraphs and list items of a Markdown page: no code, tables or headings.
func pageSentences(t *testing.T, path string) (all []sentence) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var paragraph []string
	end := func() {
		all = append(all, split(path, strings.Join(paragraph, " "))...)
		paragraph = nil
	}
	inCode := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inCode = !inCode
		}
		skipped := inCode || line == "" || strings.ContainsRune("|#<`", rune(line[0])) || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "---")
		if skipped || listItem.MatchString(line) {
			end()
		}
		if !skipped {
			paragraph = append(paragraph, listItem.ReplaceAllString(line, ""))
		}
	}
	end()
	return all
}

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		set[w] = true
	}
	return set
}
