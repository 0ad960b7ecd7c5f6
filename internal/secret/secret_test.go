package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const (
	token       = "sk-live-7Hq2mZ0pXw"
	placeholder = "EXAMPLE_TOKEN"
)

func mustNew(t testing.TB, o Options) *Secret {
	t.Helper()
	if o.Header == "" {
		o.Header = "Authorization"
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func bearer(t testing.TB) *Secret {
	return mustNew(t, Options{Value: "Bearer {}", Placeholder: placeholder, Text: []byte(token)})
}

func TestNewRefuses(t *testing.T) {
	good := Options{Header: "Authorization", Value: "Bearer {}", Placeholder: placeholder, Text: []byte(token)}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"the zero value", func(o *Options) { *o = Options{} }, "secret: the header is not a field name"},
		{"a header with a space", func(o *Options) { o.Header = "X Key" }, "secret: the header is not a field name"},
		{"a header with a line break", func(o *Options) { o.Header = "X\r\nY" }, "secret: the header is not a field name"},
		{"a pseudo-header of HTTP/2", func(o *Options) { o.Header = ":path" }, "secret: the header is not a field name"},
		{"a header that frames", func(o *Options) { o.Header = "content-length" }, "secret: the header content-length frames or routes the message"},
		{"a header that routes", func(o *Options) { o.Header = "Host" }, "secret: the header Host frames or routes the message"},
		{"a template without a slot", func(o *Options) { o.Value = "Bearer" }, "secret: the value does not hold {} exactly once"},
		{"a template with two slots", func(o *Options) { o.Value = "{} {}" }, "secret: the value does not hold {} exactly once"},
		{"a template that splits the header", func(o *Options) { o.Value = "{}\r\nX: y" }, "secret: the value is not at most 1024 printable"},
		{"a template with a space before it", func(o *Options) { o.Value = " {}" }, "secret: the value is not at most 1024 printable"},
		{"a template that is too long", func(o *Options) { o.Value = "{}" + strings.Repeat("x", 1023) }, "secret: the value is not at most 1024 printable"},
		{"no text", func(o *Options) { o.Text = nil }, "secret: the text has 0 bytes, not 8 to 8192"},
		{"a text of seven bytes and a newline", func(o *Options) { o.Text = []byte("1234567\n") }, "secret: the text has 7 bytes, not 8 to 8192"},
		{"a text that is too long", func(o *Options) { o.Text = bytes.Repeat([]byte("x"), 8193) }, "secret: the text has 8193 bytes, not 8 to 8192"},
		{"a text of two lines", func(o *Options) { o.Text = []byte("sk-live-\n7Hq2mZ0pXw\n") }, "secret: the text is not printable ASCII"},
		{"a text with two newlines behind it", func(o *Options) { o.Text = []byte("sk-live-7Hq2mZ0pXw\n\n") }, "secret: the text is not printable ASCII"},
		{"a text with NUL", func(o *Options) { o.Text = []byte("sk-live-7Hq2\x00") }, "secret: the text is not printable ASCII"},
		{"a text with a letter that is not ASCII", func(o *Options) { o.Text = []byte("sk-live-7Hq2ü") }, "secret: the text is not printable ASCII"},
		{"a text with DEL", func(o *Options) { o.Text = []byte("sk-live-7Hq2\x7f") }, "secret: the text is not printable ASCII"},
		{"a text with a space behind it", func(o *Options) { o.Text = []byte("sk-live-7Hq2 ") }, "secret: the text is not printable ASCII"},
		{"a placeholder of three bytes", func(o *Options) { o.Placeholder = "abc" }, "secret: the placeholder has 3 bytes, not 4 to 256"},
		{"a placeholder that is too long", func(o *Options) { o.Placeholder = strings.Repeat("x", 257) }, "secret: the placeholder has 257 bytes, not 4 to 256"},
		{"a placeholder with a space", func(o *Options) { o.Placeholder = "my token" }, "secret: the placeholder is not visible ASCII"},
		{"a placeholder that would tell the text", func(o *Options) { o.Placeholder = "<" + token + ">" }, "secret: the placeholder holds the text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := good
			tt.change(&o)
			s, err := New(o)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || s != nil {
				t.Fatalf("%v, want %s", err, tt.want)
			}
			if strings.Contains(err.Error(), "7Hq2") {
				t.Errorf("the error tells the text: %v", err)
			}
		})
	}
}

func TestNewTakesTheBounds(t *testing.T) {
	for _, o := range []Options{
		{Text: []byte("12345678")},
		{Text: []byte("12345678\r\n")},
		{Text: bytes.Repeat([]byte("x"), 8192)},
		{Text: []byte("with a space"), Placeholder: "four"},
		{Text: []byte(token), Value: strings.Repeat("x", 1022) + "{}", Placeholder: strings.Repeat("p", 256)},
	} {
		mustNew(t, o)
	}
}

func TestNewKeepsNoPartOfItsArgument(t *testing.T) {
	text := []byte(token + "\n")
	s := mustNew(t, Options{Text: text})
	clear(text)
	if got := s.Inject(nil); got[0].Value != token {
		t.Errorf("the secret changed to %q", got[0].Value)
	}
}

// TestPrintsNothing: neither a secret, nor what holds one, nor what it was made
// of tells anything, whoever prints it.
func TestPrintsNothing(t *testing.T) {
	s := bearer(t)
	r := s.NewRedactor()
	r.Redact([]byte(token[:len(token)-1]))
	o := Options{Header: "Authorization", Text: []byte(token)}
	for _, v := range []any{s, *s, r, *r, o, &o} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10.3v"} {
			if got := fmt.Sprintf(verb, v); got != "[secret]" {
				t.Errorf("%T prints as %s with %s", v, got, verb)
			}
		}
		if got, err := json.Marshal(v); string(got) != `"[secret]"` || err != nil {
			t.Errorf("%T is %s in JSON, %v", v, got, err)
		}
		for _, within := range []any{struct{ S any }{v}, []any{v}, map[string]any{"k": v}} {
			if got := fmt.Sprintf("%+v", within); !strings.Contains(got, "[secret]") || strings.Contains(got, "sk-live") {
				t.Errorf("%T prints as %s", within, got)
			}
		}
	}
	if s.String() != "[secret]" || s.GoString() != "[secret]" {
		t.Errorf("%s, %s", s.String(), s.GoString())
	}
}

func TestLogsNothing(t *testing.T) {
	s := bearer(t)
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var b bytes.Buffer
		slog.New(handler(&b)).Info("m", "secret", s, "value", *s, "group", slog.GroupValue(slog.Any("s", s)))
		if strings.Contains(b.String(), "sk-live") || strings.Count(b.String(), "[secret]") != 3 {
			t.Errorf("%s: %s", name, b.String())
		}
	}
}

// unexported holds secrets where fmt cannot call their methods.
type unexported struct {
	s *Secret
	r *Redactor
}

func TestAFieldThatFmtReadsTellsNothing(t *testing.T) {
	s := bearer(t)
	r := s.NewRedactor()
	r.Redact([]byte(token[:len(token)-1]))
	for _, verb := range []string{"%v", "%+v", "%#v", "%x"} {
		if got := fmt.Sprintf(verb, unexported{s, r}); strings.Contains(got, "sk-live") || strings.Contains(got, fmt.Sprintf("%x", "sk-live")) {
			t.Errorf("%s: %s", verb, got)
		}
	}
}
