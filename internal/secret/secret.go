// Package secret holds credentials that egressd adds to requests on behalf of
// a sandbox that never sees them, and keeps them from coming back to it.
//
// It knows header fields and bytes. It reads no file and runs no command,
// decides nothing about hosts, paths or TLS, and never shows a secret in an
// error or in anything that is printed. It does not decompress: a body that
// goes through a [Redactor] has to be in identity coding.
//
//	s, err := secret.New(secret.Options{Header: "Authorization", Value: "Bearer {}", Text: text})
//	fields = s.Inject(fields)
//	…
//	r := s.NewRedactor()
//	w.Write(r.Redact(p)) // for each piece of the response's body
//	w.Write(r.Flush())
package secret

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

const (
	minText        = 8 // so that no encoding of a text is found by accident
	maxText        = 8192
	maxTemplate    = 1024
	minPlaceholder = 4
	maxPlaceholder = 256

	slot = "{}"
)

// Options say what a secret is and where it goes. They print as "[secret]".
type Options struct {
	hidden

	// Header is the name of the field that carries the secret, as it is to be
	// written. Names that frame or route a message are refused.
	Header string

	// Value is the template of the field's value, visible characters and
	// spaces. It holds "{}" once, where the text stands. "" means "{}".
	Value string

	// Placeholder is what the sandbox may write in place of the text, 4 to 256
	// visible characters that do not hold the text. "" means that it may not.
	Placeholder string

	// Text is the credential: 8 to 8192 printable ASCII characters without
	// spaces around them, after one newline at the end was cut. New copies it.
	Text []byte
}

// A Secret is a credential for one header field. It prints as "[secret]",
// whatever prints it. It never changes and is safe for concurrent use. Hold it
// by its pointer: fmt looks into a value that is somebody's unexported field.
type Secret struct {
	hidden
	header      string
	value       string // the template with the text in its place
	placeholder string // "" for none
	text        string
	*Redaction  // of this secret alone
}

// New returns the secret that o describes, or an error that says what is wrong
// and holds neither the text nor the template.
func New(o Options) (*Secret, error) {
	if o.Value == "" {
		o.Value = slot
	}
	text := cutNewline(string(o.Text))
	if err := o.check(text); err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	return &Secret{
		header:      o.Header,
		value:       strings.Replace(o.Value, slot, text, 1),
		placeholder: o.Placeholder,
		text:        text,
		Redaction:   newRedaction(formsOf(o.Value, text)),
	}, nil
}

// Fill returns the template with the text in the place of "{}".
func (s *Secret) Fill(template string) string { return strings.ReplaceAll(template, slot, s.text) }

// Same reports whether s and t have the same text. Both are of one rule.
func (s *Secret) Same(t *Secret) bool { return s.text == t.text }

func (o *Options) check(text string) error {
	switch {
	case !isToken(o.Header):
		return errors.New("the header is not a field name")
	case isFraming(o.Header):
		return fmt.Errorf("the header %s frames or routes the message", o.Header)
	case len(o.Value) > maxTemplate || !isPrintable(o.Value):
		return fmt.Errorf("the value is not at most %d printable ASCII characters without spaces around them", maxTemplate)
	case strings.Count(o.Value, slot) != 1:
		return fmt.Errorf("the value does not hold %s exactly once", slot)
	case len(text) < minText || len(text) > maxText:
		return fmt.Errorf("the text has %d bytes, not %d to %d", len(text), minText, maxText)
	case !isPrintable(text):
		return errors.New("the text is not printable ASCII without spaces around it")
	}
	return checkPlaceholder(o.Placeholder, text)
}

func checkPlaceholder(placeholder, text string) error {
	switch {
	case placeholder == "":
		return nil
	case len(placeholder) < minPlaceholder || len(placeholder) > maxPlaceholder:
		return fmt.Errorf("the placeholder has %d bytes, not %d to %d", len(placeholder), minPlaceholder, maxPlaceholder)
	case !isPrintable(placeholder) || strings.Contains(placeholder, " "):
		return errors.New("the placeholder is not visible ASCII")
	case strings.Contains(placeholder, text):
		return errors.New("the placeholder holds the text")
	}
	return nil
}

// cutNewline cuts the one newline that editors and echo put behind a text.
func cutNewline(s string) string {
	s, found := strings.CutSuffix(s, "\n")
	if !found {
		return s
	}
	return strings.TrimSuffix(s, "\r")
}

// hidden makes a type that embeds it print as "[secret]". It stands by value in
// a type, since fmt reads the fields of what has no method to print itself.
type hidden struct{}

const hiddenText = "[secret]"

func (hidden) String() string { return hiddenText }

func (hidden) GoString() string { return hiddenText }

// Format writes the same for every verb: %x and %v of a struct would otherwise
// print its fields.
func (hidden) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenText) }

func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"` + hiddenText + `"`), nil }

func (hidden) LogValue() slog.Value { return slog.StringValue(hiddenText) }
