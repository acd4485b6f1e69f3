"""The words of the phrasebook: one German word for one English word in a context, with the features for agreement."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun with gender (m, f, n), both plurals, the determiners it takes and the classes that others select.

    `dets` has one letter per determiner: d the, i a, p possessive, t this, n numbers and plurals; a mass noun has no
    plural.
    """

    de: str
    gender: str
    de_plural: str
    en: str
    en_plural: str
    dets: str
    tags: frozenset[str]
    weak: bool = False

    @property
    def mass(self) -> bool:
        """True if it has no plural and takes no indefinite article (Milch, milk)."""
        return not self.de_plural


@dataclass(frozen=True)
class Adjective:
    """An adjective: the predicate form, the stem that takes endings, the comparative, and the classes it describes."""

    de: str
    de_stem: str
    de_comparative: str
    en: str
    en_comparative: str
    tags: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """A German verb and its English verb, with principal parts and the arguments they take.

    English `have_breakfast` has a tail, `put~on` a particle (put on the hat, put it on), `wait+for` a preposition, and
    `explain>to` a preposition for the dative. `kind` is a (activity: progressive), s (state: simple), e (event: never
    in the plain present) or t (timetable: simple). `frame` maps acc, dat, obl, loc, dir, fix and subj to classes.
    """

    de: str
    particle: str
    du: str
    er: str
    imperative: str
    participle: str
    aux: str
    preterite: str
    en: str
    en_past: str
    en_participle: str
    en_tail: str
    en_particle: str
    en_preposition: str
    en_dative: str
    kind: str
    frame: dict[str, str]


@dataclass(frozen=True)
class Place:
    """A place with its German prepositions at rest (dative) and in motion (accusative or zu), and both in English."""

    de: str
    gender: str
    rest: str
    motion: str
    en_rest: str
    en_motion: str
    tags: frozenset[str]


# German, gender (* weak), plural | English (/irregular plural) | determiners | classes.
NOUNS = """
Apfel m Äpfel | apple | | food fruit applecol siz
Banane f Bananen | banana | | food fruit yel
Orange f Orangen | orange | | food fruit
Birne f Birnen | pear | | food fruit siz
Tomate f Tomaten | tomato/tomatoes | | food fruit cook
Kartoffel f Kartoffeln | potato/potatoes | n | food cook
Erdbeere f Erdbeeren | strawberry | n | food fruit
Kirsche f Kirschen | cherry | n | food fruit
Ei n Eier | egg | in | food cook
Kuchen m Kuchen | cake | diptn | food bake siz tasty
Brötchen n Brötchen | bread roll | | food bake fresh
Pizza f Pizzas | pizza | | food bake tasty
Salat m Salate | salad | din | food tasty fresh
Brot n - | bread | d | food bake fresh cut
Käse m - | cheese | d | food cut
Reis m - | rice | d | food cook
Fleisch n - | meat | d | food cook fresh cut
Suppe f - | soup | d | food cook hot tasty
Schokolade f - | chocolate | d | food tasty
Obst n - | fruit | d | food fresh
Honig m - | honey | d | food
Wasser n - | water | d | drink hot
Milch f - | milk | d | drink hot
Kaffee m - | coffee | d | drink hot
Tee m - | tea | d | drink hot
Saft m - | juice | d | drink
Wein m - | wine | d | drink
Bier n - | beer | d | drink
Buch n Bücher | book | | read write goods find lend present thing new long lie story dear
Roman m Romane | novel | | read write goods lend new long story
Gedicht n Gedichte | poem | | read write long story
Geschichte f Geschichten | story | dipn | read write tell long story
Witz m Witze | joke | din | tell story
Brief m Briefe | letter | | read write send get long lie answer await weighty trash mail
Zeitung f Zeitungen | newspaper | dit | read goods get lie trash
Zeitschrift f Zeitschriften | magazine | | read goods lie new trash
Postkarte f Postkarten | postcard | | read write send get trash mail
Nachricht f Nachrichten | message | | read write send get long weighty mail
E-Mail f E-Mails | email | | read write send get long answer weighty mail
Paket n Pakete | parcel | | send get open heavy siz fetch await stand carry
Tür f Türen | door | dt | open close repair opening
Fenster n Fenster | window | dt | open close clean opening
Koffer m Koffer | suitcase | | open close goods find heavy siz new col fetch stand carry pack
Kiste f Kisten | box | | open close heavy siz fetch stand carry
Flasche f Flaschen | bottle | | open close full stand trash
Schublade f Schubladen | drawer | dt | open close
Tasche f Taschen | bag | | goods find col siz new heavy fetch carry stand present dear
Licht n Lichter | light | d | switch light
Lampe f Lampen | lamp | | switch goods repair new siz stand
Radio n Radios | radio | | switch goods repair new sale
Fernseher m Fernseher | television | dipt| switch goods repair new dear sale
Computer m Computer | computer | | switch goods repair new dear sale want
Heizung f Heizungen | heating | d | switch
Mantel m Mäntel | coat | | cloth col new warm goods find dear hang
Jacke f Jacken | jacket | | cloth col new warm goods find dear hang
Hemd n Hemden | shirt | | cloth col new goods wash
Kleid n Kleider | dress | | cloth col new goods dear wash pretty fit please
Rock m Röcke | skirt | | cloth col new goods wash pretty fit
Bluse f Blusen | blouse | | cloth col new goods wash pretty fit
Pullover m Pullover | jumper | | cloth col new warm goods wash find fit
Schal m Schals | scarf/scarves | | cloth col new warm goods find
Hut m Hüte | hat | | cloth col new goods find
Mütze f Mützen | cap | | cloth col new warm goods find
Auto n Autos | car | | vehicle goods repair wash col siz new dear sale see want belong
Fahrrad n Fahrräder | bicycle | | vehicle goods repair clean col new dear sale lend present want belong
Motorrad n Motorräder | motorbike | dipt| vehicle goods repair col new dear sale want belong
Bus m Busse | bus | dt | await miss see
Zug m Züge | train | dt | await miss see
Straßenbahn f Straßenbahnen | tram | dt | await miss see
Taxi n Taxis | taxi | di | await
Flugzeug n Flugzeuge | plane | dt | miss see
Uhr f Uhren | watch/watches | | goods find repair new dear present belong
Schlüssel m Schlüssel | key | | find need lie siz belong
Ring m Ringe | ring | | goods find dear present pretty belong
Handy n Handys | mobile phone | | goods find repair new dear need lie want belong
Brieftasche f Brieftaschen | wallet | dipt | find need lie col
Pass m Pässe | passport | dp | find need
Regenschirm m Regenschirme | umbrella | | goods find need col lend siz belong
Ball m Bälle | ball | | goods find toy col siz new belong
Puppe f Puppen | doll | | goods find toy pretty present siz belong
Spielzeug n - | toy | d | none
Geschenk n Geschenke | present | | get find pack open siz dear gift
Fahrkarte f Fahrkarten | ticket | | goods find need dear pay
Bild n Bilder | picture | | paint goods hang siz pretty sale present please dear
Foto n Fotos | photo | | show pretty
Spiegel m Spiegel | mirror | | goods hang siz
Blume f Blumen | flower | n | goods present pretty flowercol plant
Vase f Vasen | vase | | goods stand siz pretty dear present
Teppich m Teppiche | carpet | | goods new dear siz clean
Kamera f Kameras | camera | | goods find repair new dear lend need want belong
Gitarre f Gitarren | guitar | | goods repair new dear lend sale want belong
Klavier n Klaviere | piano | dipt| goods new dear sale want
Messer n Messer | knife/knives | | need lie siz
Gabel f Gabeln | fork | | need lie siz
Löffel m Löffel | spoon | | need lie siz
Teller m Teller | plate | | need dish stand siz
Tasse f Tassen | cup | | need dish stand siz
Glas n Gläser | glass/glasses | | need dish stand siz
Formular n Formulare | form | dt | form long
Rechnung f Rechnungen | bill | dpt | get
Adresse f Adressen | address | dp | note
Telefonnummer f Telefonnummern | phone number | dp | note
Wort n Wörter | word | dt | note clear hard long
Satz m Sätze | sentence | dt | note clear hard long
Frage f Fragen | question | dipt | clear hard answer ponder weighty
Problem n Probleme | problem | dipt | clear ponder hard explain siz
Aufgabe f Aufgaben | exercise | dt | hard explain
Regel f Regeln | rule | dt | clear explain
Film m Filme | film | dt | watch story new please long talk
Konzert n Konzerte | concert | dt | event please long talk
Fest n Feste | party | dt | event plan siz
Reise f Reisen | trip | dpt | event plan long recall dream talk
Urlaub m - | holiday | p | event dream
Hochzeit f Hochzeiten | wedding | d | event plan recall talk
Abendessen n Abendessen | dinner | d | plan pay
Lied n Lieder | song | | sing hear pretty please long
Musik f - | music | d | hear pretty
Haus n Häuser | house | dipt| building siz new pretty paint sale see dream please belong
Brücke f Brücken | bridge | dit | building siz new long see
Turm m Türme | tower | dit | building see high
Schiff n Schiffe | ship | dit | see siz new
Regal n Regale | shelf/shelves | dit | furn build siz
Tisch m Tische | table | | furn goods build repair siz new clean
Stuhl m Stühle | chair | | furn goods repair new fetch
Bett n Betten | bed | dipt| furn goods siz new
Sofa n Sofas | sofa | dipt| furn goods siz new col
Sessel m Sessel | armchair | | furn goods col new
Schrank m Schränke | cupboard | dit | furn goods siz new
Küche f Küchen | kitchen | dpt | room clean siz
Wohnzimmer n Wohnzimmer | living room | dpt | room clean siz
Badezimmer n Badezimmer | bathroom | dpt | room clean siz
Keller m Keller | cellar | dp | room
Büro n Büros | office | dpt | room siz new
Wohnung f Wohnungen | flat | dipt | room clean siz new dear please
Garten m Gärten | garden | dp | care siz pretty
Hund m Hunde | dog | | animal pet see siz animalcol belong
Katze f Katzen | cat | | animal pet see siz animalcol belong
Pferd n Pferde | horse | | animal see siz animalcol
Vogel m Vögel | bird | dit | animal see siz pretty
Kuh f Kühe | cow | ditn | animal see animalcol
Maus f Mäuse | mouse/mice | ditn | animal see siz
Ente f Enten | duck | ditn | animal see
Kaninchen n Kaninchen | rabbit | | animal pet see siz animalcol
Schwein n Schweine | pig | ditn | animal see siz
Fuchs m Füchse | fox/foxes | dit | animal see
Mann m Männer | man/men | dit | person adult stranger
Frau f Frauen | woman/women | dit | person adult stranger
Kind n Kinder | child/children | dit | person child stranger small
Junge m* Jungen | boy | dit | person child stranger
Mädchen n Mädchen | girl | dit | person child stranger
Lehrer m Lehrer | teacher | dipt | person adult
Ärztin f Ärztinnen | doctor | dit | person adult
Polizist m* Polizisten | policeman/policemen | dit | person adult stranger
Student m* Studenten | student | dit | person adult stranger
Verkäuferin f Verkäuferinnen | shop assistant | dt | person adult
Koch m Köche | cook | dt | person adult
Sängerin f Sängerinnen | singer | dit | person adult famous
Kellner m Kellner | waiter | dt | person adult
Nachbar m* Nachbarn | neighbour | dp | person adult
Kollegin f Kolleginnen | colleague | p | person adult
Gast m Gäste | guest | dp | person adult
Bäuerin f Bäuerinnen | farmer | dt | person adult
Maler m Maler | painter | dit | person adult famous
Mutter f Mütter | mother | p | person kin old
Vater m Väter | father | p | person kin old
Bruder m Brüder | brother | p | person kin sib
Schwester f Schwestern | sister | p | person kin sib
Sohn m Söhne | son | p | person kin child
Tochter f Töchter | daughter | p | person kin child
Großmutter f Großmütter | grandmother | p | person kin old
Großvater m Großväter | grandfather | p | person kin old
Onkel m Onkel | uncle | p | person kin
Tante f Tanten | aunt | p | person kin
"""

# Predicate form (/stem) comparative | English comparative | classes. A colour has no comparative.
ADJECTIVES = """
rot | red | col applecol flowercol
blau | blue | col flowercol
grün | green | col applecol
schwarz | black | col animalcol
weiß | white | col animalcol flowercol
braun | brown | animalcol
grau | grey | col animalcol
gelb | yellow | yel col flowercol
groß größer | big bigger | siz
klein kleiner | small smaller | siz
neu neuer | new newer | new
alt älter | old older | new building furn adult
jung jünger | young younger | adult
nett netter | nice nicer | adult
freundlich freundlicher | friendly friendlier | adult
klug klüger | clever cleverer | child
fröhlich fröhlicher | cheerful/ more cheerful | child
mutig mutiger | brave braver | child
höflich höflicher | polite politer | child adult
berühmt berühmter | famous/ more famous | famous
heiß heißer | hot hotter | hot
kalt kälter | cold colder | drink
frisch frischer | fresh fresher | fresh
süß süßer | sweet sweeter | fruit
lecker leckerer | delicious/ more delicious | tasty
reif reifer | ripe riper | fruit
lang länger | long longer | long
kurz kürzer | short shorter | long
interessant interessanter | interesting/ more interesting | story
langweilig langweiliger | boring/ more boring | story
lustig lustiger | funny funnier | story
teuer/teur teurer | expensive/ more expensive | dear
billig billiger | cheap cheaper | dear
schön schöner | beautiful/ more beautiful | pretty
schwer schwerer | heavy heavier | heavy
warm wärmer | warm warmer | warm
sauber sauberer | clean cleaner | clean wash
schmutzig schmutziger | dirty dirtier | clean wash dish
hell heller | bright brighter | room
dunkel/dunkl dunkler | dark darker | room
hoch/hoh höher | tall taller | high
leer | empty | full
voll | full | full
wichtig wichtiger | important/ more important | weighty
schwierig schwieriger | difficult/ more difficult | hard
einfach einfacher | easy easier | hard
"""

# German (particle·verb), du and er, imperative ; participle, auxiliary, preterite | English | kind | frame.
VERBS = """
lesen liest,liest lies ; gelesen h | read read read | a | acc=read loc=indoor,park
schreiben - schreib ; geschrieben h | write wrote written | a | acc=write loc=indoor
essen isst,isst iss ; gegessen h | eat ate eaten | a | acc=food loc=eat
trinken - trink ; getrunken h | drink drank drunk | a | acc=drink loc=eat
kaufen - kauf ; gekauft h | buy bought bought | a | acc=goods,food
verkaufen - verkauf ; verkauft h | sell sold sold | a | acc=sale
suchen - such ; gesucht h | look+for | a | acc=find,pet loc=rooms
finden findest,findet finde ; gefunden h | find found found | e | acc=find,pet loc=rooms,park
verlieren - verlier ; verloren h | lose lost lost | e | acc=find
vergessen vergisst,vergisst vergiss ; vergessen h | forget forgot forgotten | e | acc=find
brauchen - - ; gebraucht h brauchte | need | s | acc=need
haben hast,hat - ; gehabt h hatte | have had had | s | acc=pet,vehicle,want
sehen siehst,sieht - ; gesehen h | see saw seen | s | acc=see,stranger
hören - hör ; gehört h | listen+to | a | acc=hear loc=indoor
kennen - - ; gekannt h kannte | know knew known | s | acc=person
besuchen - besuch ; besucht h | visit | a | acc=person
treffen triffst,trifft triff ; getroffen h | meet met met | a | acc=person loc=public
fragen - frag ; gefragt h | ask | a | acc=person
fotografieren - fotografier ; fotografiert h | photograph | a | acc=animal,building,stranger
malen - mal ; gemalt h | paint | a | acc=paint,animal
bauen - bau ; gebaut h | build built built | a | acc=building,build
reparieren - reparier ; repariert h | repair | a | acc=repair
waschen wäschst,wäscht wasch ; gewaschen h | wash | a | acc=wash
putzen - putz ; geputzt h | clean | a | acc=clean
kochen - koch ; gekocht h | cook | a | acc=cook loc=kitchen
backen backst,backt back ; gebacken h | bake | a | acc=bake loc=kitchen
schneiden - schneide ; geschnitten h | cut cut cut | a | acc=cut
holen - hol ; geholt h | fetch | a | acc=fetch
tragen trägst,trägt - ; getragen h | wear wore worn | a | acc=cloth
tragen trägst,trägt trag ; getragen h | carry carried carried | a | acc=carry
auf·machen - mach ; - h | open | a | acc=open
zu·machen - mach ; - h | close | a | acc=close
an·machen - mach ; - h | turn~on | a | acc=switch
aus·machen - mach ; - h | turn~off | a | acc=switch
an·ziehen - zieh ; angezogen h | put~on put put | a | acc=cloth
aus·ziehen - zieh ; ausgezogen h | take~off took taken | a | acc=cloth
an·rufen - ruf ; angerufen h | call | a | acc=person
ab·holen - hol ; - h | pick~up | a | acc=person loc=station
mit·bringen - bring ; mitgebracht h | bring brought brought | a | acc=food,drink,gift
ein·laden lädst,lädt lade ; eingeladen h | invite | a | acc=person
auf·räumen - räum ; - h | tidy~up tidied tidied | a | acc=room
weg·werfen wirfst,wirft wirf ; weggeworfen h | throw~away threw thrown | a | acc=trash
aus·füllen - füll ; - h | fill~in | a | acc=form
zurück·geben gibst,gibt gib ; zurückgegeben h | give~back gave given | a | acc=lend
vor·bereiten - bereite ; vorbereitet h | prepare | a | acc=plan
ab·trocknen - trockne ; - h | dry dried dried | a | acc=dish
auf·hängen - häng ; - h | hang~up hung hung | a | acc=hang
auf·schreiben - schreib ; aufgeschrieben h | write~down wrote written | a | acc=note
aus·leihen - leih ; ausgeliehen h | borrow | a | acc=lend
aus·packen - pack ; - h | unpack | a | acc=pack
aus·suchen - such ; - h | choose chose chosen | a | acc=cloth,present
verstehen - - ; verstanden h | understand understood understood | s | acc=clear
beantworten - beantworte ; beantwortet h | answer | a | acc=answer
bezahlen - bezahl ; bezahlt h | pay+for paid paid | a | acc=pay
bekommen - - ; bekommen h | receive | e | acc=get
verpassen - - ; verpasst h | miss | e | acc=miss
bestellen - bestell ; bestellt h | order | a | acc=food,drink loc=order
probieren - probier ; probiert h | try tried tried | a | acc=food
singen - sing ; gesungen h | sing sang sung | a | acc=sing
pflanzen - pflanz ; gepflanzt h | plant | a | acc=plant loc=garden
an·sehen siehst,sieht - ; angesehen h | watch | a | acc=none
geben gibst,gibt gib ; gegeben h | give gave given | a | dat=person acc=find,food,present
zeigen - zeig ; gezeigt h | show showed shown | a | dat=person acc=show,room,find
schicken - schick ; geschickt h | send sent sent | a | dat=person acc=send
leihen - leih ; geliehen h | lend lent lent | a | dat=person acc=lend
bringen - bring ; gebracht h | bring brought brought | a | dat=person acc=drink,food,dish
kaufen - kauf ; gekauft h | buy bought bought | a | dat=kin,child acc=present,cloth,want
erzählen - erzähl ; erzählt h | tell told told | a | dat=person acc=tell
vor·lesen liest,liest lies ; vorgelesen h | read read read | a | dat=child acc=read
erklären - erklär ; erklärt h | explain>to | a | dat=person acc=explain
helfen hilfst,hilft hilf ; geholfen h | help | a | dat=person loc=rooms
danken - dank ; gedankt h | thank | a | dat=person
folgen - folg ; gefolgt s | follow | a | dat=stranger,pet
antworten - antworte ; geantwortet h | answer | a | dat=person
gratulieren - gratulier ; gratuliert h | congratulate | a | dat=person
vertrauen - vertrau ; vertraut h | trust | s | dat=person
zu·hören - hör ; - h | listen+to | a | dat=person
warten - warte ; gewartet h | wait | a | obl=auf:acc:for:person,await loc=wait
denken - denk ; gedacht h | think thought thought | a | obl=an:acc:of:person,event
sprechen sprichst,spricht sprich ; gesprochen h | talk | a | obl=mit:dat:to:person loc=public
reden - rede ; geredet h | talk | a | obl=über:acc:about:talk,story loc=public
tanzen - tanz ; getanzt h | dance | a | obl=mit:dat:with:person
spielen - spiel ; gespielt h | play | a | obl=mit:dat:with:pet,toy,child subj=child loc=play
träumen - träum ; geträumt h | dream | a | obl=von:dat:about:dream,event
lachen - lach ; gelacht h | laugh | a | obl=über:acc:at:tell
nach·denken - denk ; nachgedacht h | think thought thought | a | obl=über:acc:about:ponder
arbeiten - arbeite ; gearbeitet h | work | a | loc=work
schlafen schläfst,schläft schlaf ; geschlafen h | sleep slept slept | a | loc=sleep
lernen - lern ; gelernt h | study studied studied | a | loc=study
kochen - koch ; gekocht h | cook | a | loc=kitchen
weinen - wein ; geweint h | cry cried cried | a | loc=rooms
tanzen - tanz ; getanzt h | dance | a | loc=garden,kitchen
schwimmen - schwimm ; geschwommen s | swim swam swum | a | loc=swim
wandern - wander ; gewandert s | hike | a | loc=hike
frühstücken - frühstück ; gefrühstückt h | have_breakfast had had | a | loc=eat
duschen - dusch ; geduscht h | have_a_shower had had | a |
ein·kaufen - kauf ; - h | do_the_shopping did done | a | loc=shop
fern·sehen siehst,sieht sieh ; ferngesehen h | watch_television | a | loc=livingroom
auf·stehen - steh ; aufgestanden s | get_up got got | e |
auf·wachen - wach ; - s | wake_up woke woken | e |
ein·schlafen schläfst,schläft schlaf ; eingeschlafen s | fall_asleep fell fallen | e | loc=sleep
aus·steigen - steig ; ausgestiegen s | get_off got got | a | loc=station
um·steigen - steig ; umgestiegen s | change_trains | a | loc=city
an·kommen - - ; angekommen s | arrive | e | loc=station,city
ab·reisen - reis ; - s | leave left left | a |
zurück·kommen - komm ; zurückgekommen s | come_back came come | a |
mit·kommen - komm ; mitgekommen s | come_along came come | a |
aus·gehen - - ; ausgegangen s | go_out went gone | a |
bleiben - bleib ; geblieben s | stay | a | loc=stay
gehen - geh ; gegangen s | go went gone | a | dir=near
laufen läufst,läuft lauf ; gelaufen s | run ran run | a | dir=run
fahren fährst,fährt fahr ; gefahren s | go went gone | a | dir=far
fliegen - flieg ; geflogen s | fly flew flown | a | dir=far
reisen - reis ; gereist s | travel | a | dir=far
um·ziehen - zieh ; umgezogen s | move | a | dir=far
wohnen - - ; gewohnt h | live | s | loc=city,country
sitzen - - ; gesessen h | sit sat sat | a | loc=sit
liegen - - ; gelegen h lag | lie lay lain | a | loc=none
stehen - - ; gestanden h stand | stand stood stood | a | loc=none
legen - leg ; gelegt h | put put put | a | acc=none
stellen - stell ; gestellt h | put put put | a | acc=none
haben hast,hat - ; gehabt h hatte | be was been | s |
freuen - - ; gefreut h | look_forward | a | obl=auf:acc:to:event
interessieren - - ; interessiert h | be_interested was been | s | obl=für:acc:in:none
erinnern - - ; erinnert h | remember | s | obl=an:acc::person,recall
kümmern - kümmer ; gekümmert h | look | a | obl=um:acc:after:pet,care,old
beeilen - beeil ; beeilt h | hurry hurried hurried | a |
sein bist,ist sei ; gewesen s war | be was been | s |
gehören - - ; gehört h gehörte | belong+to | s | dat=person
passen - - ; gepasst h passte | fit | s | dat=person
kosten - - ; gekostet h kostete | cost cost cost | s |
wissen weißt,weiß - ; gewusst h wusste | know knew known | s |
glauben - - ; geglaubt h glaubte | think thought thought | s |
sagen - - ; gesagt h | say said said | s |
hoffen - - ; gehofft h hoffte | hope | s |
ab·fahren fährst,fährt - ; abgefahren s | leave left left | t |
an·fangen fängst,fängt - ; angefangen h | start | t |
heißen - - ; geheißen h hieß | be was been | s |
ab·fliegen - - ; abgeflogen s | leave left left | t |
auf·hören - - ; - h | end | t |
gefallen gefällst,gefällt - ; gefallen h | like | s |
schmecken - - ; geschmeckt h | like | s |
kommen - - ; gekommen s | come came come | s |
lernen - lern ; gelernt h | learn | a | fix=
sprechen sprichst,spricht - ; gesprochen h | speak spoke spoken | s | fix=
spielen - spiel ; gespielt h | play | a | fix=
dauern - - ; gedauert h | last | s |
versuchen - versuch ; versucht h | try tried tried | a |
scheinen - - ; geschienen h | shine shone shone | a |
regnen - - ; geregnet h | rain | a |
schneien - - ; geschneit h | snow | a |
"""

# German gender | rest | motion | English rest | English motion | classes. zu and nach take no accusative.
PLACES = """
Küche f | in | in | in the kitchen | into the kitchen | indoor kitchen rooms near run sit
Wohnzimmer n | in | in | in the living room | into the living room | indoor livingroom rooms near run sit sleep
Schlafzimmer n | in | in | in the bedroom | into the bedroom | indoor rooms near sleep
Büro n | in | in | in the office | to the office | indoor rooms near work
Garten m | in | in | in the garden | into the garden | garden rooms near run sit park play wait sleep eat
Park m | in | in | in the park | to the park | near run sit park play public wait
Wald m | in | in | in the forest | into the forest | near run park hike play
Schule f | in | in | at school | to school | near study public wait run
Supermarkt m | in | in | at the supermarket | to the supermarket | near shop work public
Markt m | auf | auf | at the market | to the market | near shop public work
Bahnhof m | an | zu | at the station | to the station | near station wait public run
Flughafen m | an | zu | at the airport | to the airport | station wait public work
Kino n | in | in | at the cinema | to the cinema | near public out wait
Theater n | in | in | at the theatre | to the theatre | near out work
Museum n | in | in | at the museum | to the museum | near out work
Restaurant n | in | in | at the restaurant | to the restaurant | near eat order work wait
Café n | in | in | at the café | to the café | near eat order public wait sit study
Bibliothek f | in | in | in the library | to the library | near indoor study work
Schwimmbad n | in | in | at the swimming pool | to the swimming pool | near swim out
Krankenhaus n | in | in | at the hospital | to the hospital | near work
Hotel n | in | in | at the hotel | to the hotel | near eat sleep work stay
Bäckerei f | in | in | at the bakery | to the bakery | near shop work
Apotheke f | in | in | at the pharmacy | to the pharmacy | near work
Post f | bei | zu | at the post office | to the post office | near work
Universität f | an | zu | at the university | to the university | near study work
Kirche f | in | in | in the church | to church | near sing
Strand m | an | zu | on the beach | to the beach | near out run sit park play
See m | in | zu | in the lake | to the lake | near out swim
Fluss m | in | zu | in the river | to the river | near run swim
"""

CITIES = """
Berlin=Berlin Hamburg=Hamburg München=Munich Köln=Cologne Wien=Vienna Zürich=Zurich Rom=Rome London=London Paris=Paris
Prag=Prague Dresden=Dresden Frankfurt=Frankfurt Leipzig=Leipzig Bremen=Bremen Warschau=Warsaw Lissabon=Lisbon
Athen=Athens Brüssel=Brussels
"""

COUNTRIES = """
Italien=Italy Spanien=Spain Frankreich=France Polen=Poland Österreich=Austria England=England Griechenland=Greece
Schweden=Sweden Norwegen=Norway Portugal=Portugal Kanada=Canada Japan=Japan
"""

LANGUAGES = """
Deutsch=German Englisch=English Französisch=French Spanisch=Spanish Italienisch=Italian Polnisch=Polish Russisch=Russian
Japanisch=Japanese
"""

FEMALE_NAMES = [
    "Anna",
    "Maria",
    "Julia",
    "Sophie",
    "Lena",
    "Laura",
    "Eva",
    "Clara",
    "Emma",
    "Nina",
    "Sarah",
    "Lisa",
    "Marta",
    "Paula",
    "Helga",
    "Ingrid",
]
MALE_NAMES = [
    "Paul",
    "Peter",
    "Lukas",
    "Felix",
    "Max",
    "Thomas",
    "Jonas",
    "David",
    "Martin",
    "Stefan",
    "Karl",
    "Otto",
    "Simon",
    "Erik",
    "Hans",
    "Leo",
]
SURNAMES = ["Müller", "Schmidt", "Schneider", "Fischer", "Weber", "Wagner", "Becker", "Hoffmann"]

WEEKDAYS = """
Montag=Monday Dienstag=Tuesday Mittwoch=Wednesday Donnerstag=Thursday Freitag=Friday Samstag=Saturday Sonntag=Sunday
"""
MONTHS = """
Januar=January Februar=February März=March April=April Mai=May Juni=June Juli=July August=August September=September
Oktober=October November=November Dezember=December
"""


def pairs(table: str) -> list[tuple[str, str]]:
    """Read `German=English` words from a table."""
    return [(word.split("=")[0], word.split("=")[1]) for word in table.split()]


def english_plural(noun: str) -> str:
    """Return the regular plural of an English noun (baby -> babies, bus -> buses, key -> keys)."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def _noun(row: list[str]) -> Noun:
    german, english, dets, tags = row
    word, gender, plural = german.split()
    singular, _, irregular = english.partition("/")
    plural = "" if plural == "-" else plural
    return Noun(
        word,
        gender[0],
        plural,
        singular,
        irregular or english_plural(singular),
        dets or "diptn",
        frozenset(tags.split()),
        weak=gender.endswith("*"),
    )


def _adjective(row: list[str]) -> Adjective:
    forms = row[0].split()
    base, _, stem = forms[0].partition("/")
    english = [part.strip() for part in row[1].split("/")] if "/" in row[1] else row[1].split()
    return Adjective(
        base,
        stem or base,
        forms[1] if len(forms) > 1 else "",
        english[0],
        english[1] if len(english) > 1 else "",
        frozenset(row[2].split()),
    )


def _inserts_e(stem: str) -> bool:
    """Return whether the endings -st and -t need a linking e (arbeitest, trocknet)."""
    return stem.endswith(("t", "d")) or stem.endswith(("chn", "ckn", "dn", "gn", "ffn"))


def _present(stem: str, given: str) -> tuple[str, str]:
    if given != "-":
        du, er = given.split(",")
        return du, er
    if _inserts_e(stem):
        return stem + "est", stem + "et"
    return stem + ("t" if stem.endswith(("s", "ß", "z", "x")) else "st"), stem + "t"


def infinitive_stem(infinitive: str) -> str:
    """Return the stem of an infinitive (machen -> mach, wandern -> wander)."""
    return infinitive[:-1] if infinitive.endswith(("ern", "eln")) or infinitive == "sein" else infinitive[:-2]


def _english_past(base: str) -> str:
    """Return the regular past of an English verb (shop -> shopped, clean -> cleaned)."""
    if base in ("shop", "travel", "plan"):
        return base + base[-1] + "ed"
    return base + ("d" if base.endswith("e") else "ed")


def _verb(row: list[str]) -> Verb:
    german, english, kind, frame = row
    head, parts = (half.split() for half in german.split(";"))
    particle, _, infinitive = head[0].rpartition("·")
    stem = infinitive_stem(infinitive)
    du, er = _present(stem, head[1])
    participle = particle + "ge" + stem + ("et" if _inserts_e(stem) else "t") if parts[0] == "-" else parts[0]
    words = english.split()
    base, mark, rest = re.match(r"([a-z]+)([_~+>]?)(.*)", words[0]).groups()  # type: ignore[union-attr]
    past, past_participle = words[1:] if len(words) == 3 else (_english_past(base), _english_past(base))
    extra = {mark: rest.replace("_", " ")}
    return Verb(
        de=infinitive,
        particle=particle,
        du=du,
        er=er,
        imperative="" if head[2] == "-" else head[2],
        participle=participle,
        aux=parts[1],
        preterite=parts[2] if len(parts) > 2 else "",
        en=base,
        en_past=past,
        en_participle=past_participle,
        en_tail=extra.get("_", ""),
        en_particle=extra.get("~", ""),
        en_preposition=extra.get("+", ""),
        en_dative=extra.get(">", ""),
        kind=kind,
        frame=dict(item.split("=", 1) for item in frame.split()),
    )


def _place(row: list[str]) -> Place:
    word, gender = row[0].split()
    return Place(word, gender, row[1], row[2], row[3], row[4], frozenset(row[5].split()))


nouns = [_noun(row) for row in _rows(NOUNS)]
adjectives = [_adjective(row) for row in _rows(ADJECTIVES)]
verbs = [_verb(row) for row in _rows(VERBS)]
places = [_place(row) for row in _rows(PLACES)]


def noun(german: str) -> Noun:
    """Return the noun with this German singular."""
    return next(entry for entry in nouns if entry.de == german)


def verb(german: str, english: str = "") -> Verb:
    """Return the verb with this German infinitive (aufmachen) and, where there are several, this English base."""
    return next(v for v in verbs if v.particle + v.de == german and (not english or v.en == english))


def tagged(tags: str) -> list[Noun]:
    """Return the nouns that have one of the comma-separated tags."""
    wanted = set(tags.split(","))
    return [entry for entry in nouns if entry.tags & wanted]


def places_tagged(tags: str) -> list[Place]:
    """Return the places that have one of the comma-separated tags."""
    wanted = set(tags.split(","))
    return [entry for entry in places if entry.tags & wanted]
