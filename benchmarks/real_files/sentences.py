"""Parallel sentences in eleven languages: three slots with seven phrases each, and the embedded phrasebook."""

from __future__ import annotations

import functools
import itertools
import json
import random
from typing import NamedTuple

from seq2seq.system.resources import data_dir

Pair = tuple[str, str]


class Language(NamedTuple):
    """Phrases of a language, in the same order for all languages.

    Args:
        form: Template with the order of subject, predicate and time.
        pages: Code pages that its text was written in before UTF-8.
    """

    form: str
    subjects: str
    predicates: str
    times: str
    pages: tuple[str, ...] = ()


# Subjects are masculine and singular, so that no verb changes with them.
LANGUAGES = {
    "en": Language(
        "{s} {p} {t}.", "My brother|The doctor|Our old teacher|Daniel|A tired driver from the north|The man|His guest",
        "buys fresh bread|reads a long book about birds|waits|is looking for the blue key|writes a letter to his friend"
        "|sings|opens the small window",
        "today|every morning before work|in summer|on Monday|at night|after the meeting in the city|again",
    ),
    "de": Language(
        "{s} {p} {t}.", "Mein Bruder|Der Arzt|Unser früherer Lehrer|Daniel|Ein müder Fahrer aus dem Norden|Der Mann"
        "|Sein Gast",
        "kauft frische Brötchen|liest ein langes Buch über Vögel|hört zu|sucht den blauen Schlüssel"
        "|schreibt seinem Freund einen schönen Brief|übt|öffnet das kleine Fenster",
        "heute|jeden Morgen vor der Arbeit|im Sommer|am Montag|bei Nacht|nach der Sitzung in der Stadt|wieder",
        ("latin-1", "cp1252", "cp850", "mac-roman"),
    ),
    "ru": Language(
        "{s} {p} {t}.", "Мой брат|Врач|Наш старый учитель|Даниил|Усталый водитель с севера|Сосед|Его гость",
        "покупает свежий хлеб|читает длинную книгу о птицах|ждёт|ищет синий ключ|пишет письмо своему другу|поёт"
        "|открывает маленькое окно",
        "сегодня|каждое утро перед работой|летом|в понедельник|ночью|после собрания в городе|снова",
        ("cp1251", "koi8-r", "iso8859-5"),
    ),
    "el": Language(
        "{s} {p} {t}.", "Ο αδελφός μου|Ο γιατρός|Ο παλιός μας δάσκαλος|Ο Δανιήλ|Ένας κουρασμένος οδηγός από τον βορρά"
        "|Ο άνδρας|Ο καλεσμένος του",
        "αγοράζει φρέσκο ψωμί|διαβάζει ένα μεγάλο βιβλίο για πουλιά|περιμένει|ψάχνει το μπλε κλειδί"
        "|γράφει ένα γράμμα στον φίλο του|τραγουδά|ανοίγει το μικρό παράθυρο",
        "σήμερα|κάθε πρωί πριν από τη δουλειά|το καλοκαίρι|τη Δευτέρα|τη νύχτα|μετά τη συνάντηση στην πόλη|πάλι",
        ("cp1253", "iso8859-7"),
    ),
    "ar": Language(
        "{s} {p} {t}.", "أخي|الطبيب|معلمنا القديم|دانيال|سائق متعب من الشمال|الرجل|ضيفه",
        "يشتري خبزا طازجا|يقرأ كتابا طويلا عن الطيور|ينتظر|يبحث عن المفتاح الأزرق|يكتب رسالة إلى صديقه|يغني"
        "|يفتح النافذة الصغيرة",
        "اليوم|كل صباح قبل العمل|في الصيف|يوم الاثنين|في الليل|بعد الاجتماع في المدينة|مرة أخرى",
        ("cp1256", "iso8859-6"),
    ),
    "he": Language(
        "{s} {p} {t}.", "אחי|הרופא|המורה הזקן שלנו|דניאל|נהג עייף מהצפון|האיש|האורח שלו",
        "קונה לחם טרי|קורא ספר ארוך על ציפורים|מחכה|מחפש את המפתח הכחול|כותב מכתב לחבר שלו|שר|פותח את החלון הקטן",
        "היום|כל בוקר לפני העבודה|בקיץ|ביום שני|בלילה|אחרי הפגישה בעיר|שוב",
        ("cp1255", "iso8859-8"),
    ),
    "hi": Language(
        "{s} {t} {p}।", "मेरा भाई|डॉक्टर|हमारा पुराना शिक्षक|दानिएल|उत्तर का एक थका हुआ चालक|आदमी|उसका मेहमान",
        "ताज़ी रोटी खरीदता है|पक्षियों के बारे में एक लंबी किताब पढ़ता है|रुकता है|नीली चाबी ढूँढता है"
        "|अपने दोस्त को एक पत्र लिखता है|गाता है|छोटी खिड़की खोलता है",
        "आज|हर सुबह काम से पहले|गर्मियों में|सोमवार को|रात में|शहर में बैठक के बाद|फिर",
    ),
    "th": Language(
        "{s}{p}{t}", "พี่ชายของฉัน|หมอ|ครูเก่าของเรา|ดาเนียล|คนขับรถที่เหนื่อยล้าจากภาคเหนือ|ผู้ชาย|แขกของเขา",
        "ซื้อขนมปังสด|อ่านหนังสือเล่มยาวเกี่ยวกับนก|รอ|กำลังหากุญแจสีฟ้า|เขียนจดหมายถึงเพื่อนของเขา|ร้องเพลง|เปิดหน้าต่างบานเล็ก",
        "วันนี้|ทุกเช้าก่อนไปทำงาน|ในฤดูร้อน|ในวันจันทร์|ตอนกลางคืน|หลังการประชุมในเมือง|อีกครั้ง",
        ("tis-620", "cp874"),
    ),
    "zh": Language(
        "{s}{t}{p}。", "我的哥哥|医生|我们的旧同事|丹尼尔|一位来自北方的疲惫的司机|那个男人|他的客人",
        "买新鲜面包|读一本关于鸟类的长篇书籍|等候|寻找那把蓝色的钥匙|给他的朋友写一封信|唱歌|打开那扇小窗户",
        "今天|每天早上上班之前|在夏天|星期一|夜里|在城里的会议结束以后|又",
        ("gb18030", "gbk"),
    ),
    "ja": Language(
        "{t}、{s}は{p}。", "私の兄|医者|私たちの昔の先生|ダニエル|北から来た疲れた運転手|その男|彼の客",
        "新しいパンを買う|鳥についての長い本を読む|待つ|青い鍵を探している|友達に手紙を書く|歌う|小さな窓を開ける",
        "今日|毎朝仕事の前に|夏に|月曜日に|夜に|町での会議の後で|また",
        ("shift-jis", "cp932", "euc-jp"),
    ),
    "ko": Language(
        "{s} {t} {p}.", "우리 형은|의사는|우리의 옛 선생님은|다니엘은|북쪽에서 온 피곤한 운전사는|그 남자는"
        "|그의 손님은",
        "신선한 빵을 산다|새에 관한 긴 책을 읽는다|기다린다|파란 열쇠를 찾고 있다|친구에게 편지를 쓴다"
        "|노래한다|작은 창문을 연다",
        "오늘|매일 아침 일하기 전에|여름에|월요일에|밤에|시내에서 회의가 끝난 뒤에|다시",
        ("euc-kr", "cp949"),
    ),
}  # fmt: skip
# Languages without spaces between words, and languages scored by character.
UNSPACED = ("zh", "ja", "th")
BY_CHARACTER = (*UNSPACED, "ko")


@functools.cache
def sentences(code: str) -> tuple[str, ...]:
    """Write all sentences of a language; sentences with the same index are translations of each other."""
    language = LANGUAGES[code]
    slots = (slot.split("|") for slot in (language.subjects, language.predicates, language.times))
    return tuple(language.form.format(s=s, p=p, t=t) for s, p, t in itertools.product(*slots))


@functools.cache
def phrasebook() -> tuple[Pair, ...]:
    """Read the first pairs of the embedded phrasebook, German and English."""
    with (data_dir() / "phrasebook" / "train.jsonl").open(encoding="utf-8") as file:
        pairs = [json.loads(line)["translation"] for line in itertools.islice(file, 400)]
    return tuple(dict.fromkeys((pair["de"], pair["en"]) for pair in pairs))


def draw(rng: random.Random, code: str, count: int) -> list[Pair]:
    """Draw different pairs of a language and English; German pairs are from the phrasebook half of the time."""
    if code == "de" and rng.random() < 0.5:
        return rng.sample(phrasebook(), count)
    return rng.sample(list(zip(sentences(code), sentences("en"), strict=True)), count)
