package signals

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
)

// Stories groups suspects: what one program of a sandbox did that began within one hour is one story for a person, such as a
// search that went to nine destinations. Both the stories and the suspects of each keep their order, the highest score first.
func Stories(all []Suspect) (stories [][]Suspect) {
	at := map[string]int{}
	for _, a := range all {
		i, known := at[a.Story]
		if !known {
			i = len(stories)
			at[a.Story] = i
			stories = append(stories, nil)
		}
		stories[i] = append(stories[i], a)
	}
	return stories
}

// storyOf is the number of the story that a suspect belongs to. It is the same at each reading of a log.
func storyOf(a *Suspect) string {
	sum := sha256.Sum256([]byte(a.Sandbox + "\x00" + a.Program + "\x00" + strconv.FormatInt(a.First.Unix()/3600, 10)))
	return "S" + base32.StdEncoding.EncodeToString(sum[:])[:6]
}
