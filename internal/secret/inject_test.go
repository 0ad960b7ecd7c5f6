package secret

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func basic(userPass string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(userPass))
}

func TestInject(t *testing.T) {
	const real = "Bearer " + token
	for _, tt := range []struct {
		name string
		sent []Field
		want []Field
	}{
		{"no field is sent", nil, []Field{{"Authorization", real}}},
		{"others keep their order", []Field{{"A", "1"}, {"B", "2"}}, []Field{{"A", "1"}, {"B", "2"}, {"Authorization", real}}},
		{"the client's own is lost", []Field{{"A", "1"}, {"Authorization", "Bearer evil"}, {"B", "2"}}, []Field{{"A", "1"}, {"Authorization", real}, {"B", "2"}}},
		{"in another case too", []Field{{"aUTHORIZATION", "Bearer evil"}}, []Field{{"Authorization", real}}},
		{"an empty one too", []Field{{"authorization", ""}}, []Field{{"Authorization", real}}},
		{"a placeholder is filled", []Field{{"authorization", "token " + placeholder}}, []Field{{"Authorization", "token " + token}}},
		{"a placeholder alone", []Field{{"Authorization", placeholder}}, []Field{{"Authorization", token}}},
		{"after a scheme of all that one may have", []Field{{"Authorization", "GoogleLogin-2-ab " + placeholder}}, []Field{{"Authorization", "GoogleLogin-2-ab " + token}}},
		{"after a scheme that is too long", []Field{{"Authorization", "GoogleLogin-2-abc " + placeholder}}, []Field{{"Authorization", real}}},
		{"after something that is no scheme", []Field{{"Authorization", "to/ken " + placeholder}}, []Field{{"Authorization", real}}},
		{"after two spaces", []Field{{"Authorization", "token  " + placeholder}}, []Field{{"Authorization", real}}},
		{"after a tab", []Field{{"Authorization", "token\t" + placeholder}}, []Field{{"Authorization", real}}},
		{"after two schemes", []Field{{"Authorization", "a b " + placeholder}}, []Field{{"Authorization", real}}},
		{"without a space after the scheme", []Field{{"Authorization", "token" + placeholder}}, []Field{{"Authorization", real}}},
		{"something behind it", []Field{{"Authorization", "token " + placeholder + "x"}}, []Field{{"Authorization", real}}},
		{"among other things", []Field{{"Authorization", "Key k=" + placeholder + "; v=1"}}, []Field{{"Authorization", real}}},
		{"twice", []Field{{"Authorization", placeholder + "," + placeholder}}, []Field{{"Authorization", real}}},
		{"twice, after a scheme", []Field{{"Authorization", "token " + placeholder + " " + placeholder}}, []Field{{"Authorization", real}}},
		{"a placeholder in another case is none", []Field{{"Authorization", "token " + strings.ToLower(placeholder)}}, []Field{{"Authorization", real}}},
		{"a part of the placeholder is none", []Field{{"Authorization", placeholder[1:]}}, []Field{{"Authorization", real}}},
		{"within Basic", []Field{{"Authorization", basic("user:" + placeholder)}}, []Field{{"Authorization", basic("user:" + token)}}},
		{"as the user of Basic", []Field{{"Authorization", basic(placeholder + ":x-oauth")}}, []Field{{"Authorization", basic(token + ":x-oauth")}}},
		{"within Basic without a user", []Field{{"Authorization", basic(":" + placeholder)}}, []Field{{"Authorization", basic(":" + token)}}},
		{"within Basic without a password", []Field{{"Authorization", basic(placeholder + ":")}}, []Field{{"Authorization", basic(token + ":")}}},
		{"within Basic, the longest user", []Field{{"Authorization", basic(strings.Repeat("u", 64) + ":" + placeholder)}}, []Field{{"Authorization", basic(strings.Repeat("u", 64) + ":" + token)}}},
		{"within Basic, a user that is too long", []Field{{"Authorization", basic(strings.Repeat("u", 65) + ":" + placeholder)}}, []Field{{"Authorization", real}}},
		{"within Basic, a password that is too long", []Field{{"Authorization", basic(placeholder + ":" + strings.Repeat("p", 65))}}, []Field{{"Authorization", real}}},
		{"within Basic, no user at all", []Field{{"Authorization", basic(placeholder)}}, []Field{{"Authorization", real}}},
		{"within Basic, a part of the user", []Field{{"Authorization", basic("x" + placeholder + ":p")}}, []Field{{"Authorization", real}}},
		{"within Basic, a part of the password", []Field{{"Authorization", basic("u:" + placeholder + "x")}}, []Field{{"Authorization", real}}},
		{"within Basic, a control character in the user", []Field{{"Authorization", basic("u\x00:" + placeholder)}}, []Field{{"Authorization", real}}},
		{"within Basic, scheme as it was sent", []Field{{"Authorization", "bAsIc  " + basic("u:" + placeholder)[6:]}}, []Field{{"Authorization", "bAsIc " + basic("u:" + token)[6:]}}},
		{"within Basic with padding", []Field{{"Authorization", basic("us:" + placeholder)}}, []Field{{"Authorization", basic("us:" + token)}}},
		{"within Basic without padding", []Field{{"Authorization", strings.TrimRight(basic("us:"+placeholder), "=")}}, []Field{{"Authorization", basic("us:" + token)}}},
		{"Basic as plain text", []Field{{"Authorization", "Basic " + placeholder}}, []Field{{"Authorization", "Basic " + token}}},
		{"Basic without a placeholder", []Field{{"Authorization", basic("user:pass")}}, []Field{{"Authorization", real}}},
		{"Basic with a line break inside", []Field{{"Authorization", basic("user:" + placeholder + "\r\n")}}, []Field{{"Authorization", real}}},
		{"Basic that is not base64", []Field{{"Authorization", "Basic " + basic("u:" + placeholder)[6:] + "!"}}, []Field{{"Authorization", real}}},
		{"base64 in another scheme", []Field{{"Authorization", "Bearer " + basic("u:" + placeholder)[6:]}}, []Field{{"Authorization", real}}},
		{"two fields, one with the placeholder", []Field{{"A", "1"}, {"Authorization", placeholder}, {"B", "2"}, {"authorization", "evil"}}, []Field{{"A", "1"}, {"Authorization", real}, {"B", "2"}}},
		{"two fields, both with the placeholder", []Field{{"Authorization", "a " + placeholder}, {"Authorization", "b " + placeholder}}, []Field{{"Authorization", real}}},
		{"a line break beside the placeholder", []Field{{"Authorization", placeholder + "\r\nX-Evil: 1"}}, []Field{{"Authorization", real}}},
		{"NUL beside the placeholder", []Field{{"Authorization", placeholder + "\x00"}}, []Field{{"Authorization", real}}},
		{"DEL beside the placeholder", []Field{{"Authorization", placeholder + "\x7f"}}, []Field{{"Authorization", real}}},
		{"spaces around it are trimmed", []Field{{"Authorization", "\t token " + placeholder + " "}}, []Field{{"Authorization", "token " + token}}},
		{"a placeholder elsewhere goes through", []Field{{"X-Other", placeholder}, {"Cookie", "t=" + placeholder}}, []Field{{"X-Other", placeholder}, {"Cookie", "t=" + placeholder}, {"Authorization", real}}},
		{"a name that only begins like it", []Field{{"Authorization-Info", "x"}}, []Field{{"Authorization-Info", "x"}, {"Authorization", real}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.sent)
			got := bearer(t).Inject(tt.sent)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, tt.sent); diff != "" {
				t.Errorf("the argument changed: %s", diff)
			}
		})
	}
}

func TestInjectWithoutAPlaceholder(t *testing.T) {
	s := mustNew(t, Options{Header: "X-Api-Key", Text: []byte(token + "\n")})
	kelvin := Field{"X-Api-\u212aey", "folds to the name, but not in ASCII"}
	got := s.Inject([]Field{{"x-api-key", placeholder}, kelvin, {"Authorization", "Bearer mine"}})
	if diff := cmp.Diff([]Field{{"X-Api-Key", token}, kelvin, {"Authorization", "Bearer mine"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestInjectATextThatHoldsThePlaceholder(t *testing.T) {
	s := mustNew(t, Options{Placeholder: "live", Text: []byte(token)})
	if got := s.Inject([]Field{{"Authorization", "token live"}}); got[0].Value != "token "+token {
		t.Errorf("%q", got[0].Value)
	}
}

// TestInjectAimsNothing: whatever a client writes beside the placeholder, it
// moves the text by little, so that a server which repeats a value and cuts it
// off shows what it would show of any.
func TestInjectAimsNothing(t *testing.T) {
	s := bearer(t)
	for n := range 200 {
		pad := strings.Repeat("p", n)
		for _, sent := range []string{pad + placeholder, pad + " " + placeholder, placeholder + pad, placeholder + " " + pad, basic(pad + ":" + placeholder), basic(pad + placeholder)} {
			got := s.Inject([]Field{{"Authorization", sent}})[0].Value
			if coded, ok := strings.CutPrefix(got, "Basic "); ok {
				decoded, _ := base64.StdEncoding.DecodeString(coded)
				got = string(decoded)
			}
			if at := strings.Index(got, token); at < 0 || at > maxUser+1 || !strings.HasSuffix(got, token) {
				t.Errorf("%q became %q", sent, got)
			}
		}
	}
}
